// Copies in and out of a fusion buffer. Host memory is copied a bounded piece with each step of the
// loop; a device gets all at once.
#pragma once

#include <cstddef>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::core {

class SlicedCopy {
 public:
  // A copy of this size takes a fraction of a millisecond.
  static constexpr size_t kBytesPerStep = size_t{1} << 20;

  // Nothing to copy.
  SlicedCopy() = default;
  // Items are given to the queue in their order. The queue must outlive the copy.
  SlicedCopy(MemoryQueue& queue, std::vector<CopyItem> items);

  // Done: all has been given to the queue. Advanced: a piece. Throws what the queue throws.
  Progress step();

 private:
  std::vector<CopyItem> next_slice();

  MemoryQueue* queue_ = nullptr;
  std::vector<CopyItem> items_;  // those before next_ have been given to the queue
  size_t next_ = 0;
};

}  // namespace horon::core
