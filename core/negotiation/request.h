// What the runtime gives the controller for one entry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horon/core/negotiation/effects.h"
#include "horon/core/negotiation/protocol.h"

namespace horon::core {

struct Request {
  Ticket ticket = 0;
  std::string name;
  SpecPtr spec;
  std::vector<bool> absent;      // see Ready
  std::vector<int64_t> extents;  // see Ready
  bool eager = false;            // `elements` may be sent with the vote
  std::vector<std::byte> elements = {};
};

}  // namespace horon::core
