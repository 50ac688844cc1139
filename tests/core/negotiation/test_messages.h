// What tests give a single controller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/negotiation/protocol.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core::test_messages {

inline SpecPtr tensor(const std::string& name, int64_t extent = 4) {
  EntrySpec spec;
  spec.parts = {{name, {extent}}};
  return std::make_shared<const EntrySpec>(spec);
}

inline std::vector<std::byte> message(const Item& item) {
  Envelope envelope;
  envelope.items.push_back(item);
  return encode(envelope);
}

}  // namespace horon::core::test_messages
