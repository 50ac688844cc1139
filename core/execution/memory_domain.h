// One kind of memory (host, a GPU): scratch, and the queue of the work on it. Every process set has
// domains of its own, so the sets do not wait for each other.
#pragma once

#include <cstddef>
#include <memory>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::core {

class MemoryDomain {
 public:
  virtual ~MemoryDomain() = default;
  virtual DeviceKind device() const = 0;
  // Which device of its kind, on this rank: tensors of other devices can't take part. It may differ
  // between ranks, so it is no part of a spec.
  virtual int device_index() const { return 0; }
  // Scratch that the ops of this device can use best (shared memory, registered memory). Never null
  // for bytes > 0. Released when no work that is enqueued uses it any more.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // The work on tensors and scratch of one set, packing, collectives and unpacking, in one order.
  virtual MemoryQueue& queue() = 0;
};

}  // namespace horon::core
