// Times the network between two hosts: short messages to and fro, then long ones both ways at the
// same time, as many as fit into the time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class WireTiming {
 public:
  struct Limits {
    std::chrono::microseconds begins = std::chrono::milliseconds(40);  // what is begun after it
    std::chrono::microseconds answer = std::chrono::seconds(10);       // of a peer
  };
  struct Times {
    double message_us = 0;
    double wire_bytes_per_us = 0;
  };
  // Both ranks call it; one of them leads and gets the times. Afterwards no message is under way.
  // Throws Error(PeerDead) if the peer does not answer, and what the messages throw. If some are
  // still under way then, they and `messages` are kept for ever.
  static std::optional<Times> measure(std::shared_ptr<Messages> messages, int peer, bool leads,
                                      const Limits& limits);
};

}  // namespace horon::ops
