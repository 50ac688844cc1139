// What the control protocol has cost one member, counted from its start.
#pragma once

#include <cstdint>

namespace horon::core {

struct Statistics {
  uint64_t freezes = 0;           // entries that were frozen
  uint64_t thaws = 0;             // of these, entries that were thawed
  uint64_t frozen_starts = 0;     // collectives that started without a message
  uint64_t void_starts = 0;       // a Thaw came between the last arrival and the start
  uint64_t control_messages = 0;  // sent from here
};

}  // namespace horon::core
