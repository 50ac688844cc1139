// Scratch that belongs to an op: memory that all ranks have made known to each other.
#pragma once

#include <cstddef>
#include <memory>

#include "horon/core/execution/event.h"

namespace horon::core {

// The batches of the op use it one after the other, each from its beginning: a batch enqueues
// nothing before all work of the batch before it is in the queue, so the queue keeps them apart.
struct SharedScratch {
  std::byte* memory = nullptr;
  size_t bytes = 0;
  int users = 0;                     // batches whose work is not all in the queue
  std::shared_ptr<Event> last_used;  // happens when the work of those before is done
};

}  // namespace horon::core
