// One kind of memory (host, a GPU): scratch, and the queue of the work on it. Every process set has
// domains of its own, so the sets do not wait for each other.
//
// The order of collectives on a device: those of one set enter its queue in the order of the set's
// log, the same on every rank. Between sets there is no common order, since each has a log of its
// own: two ranks may come to start collectives of two sets in unlike order. Where a collective that
// waits for its peers in one queue may keep those in other queues from starting (kernels of NCCL
// that fill the device), the ops of that device agree on an order among the sets.
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
  // Which device of its kind, the same in all sets of this rank: tensors of other devices are
  // refused (Submission::device_index). Ranks have devices of their own, so it differs between them
  // and is no part of a spec.
  virtual int device_index() const { return 0; }
  // False: the device is being opened, which may take seconds. Every batch asks again and again
  // before it asks for memory or gives work to the queue. Throws Error.
  virtual bool is_open() { return true; }
  // False: the ops reach only the scratch, which lies elsewhere than the tensors. So every batch is
  // packed, even one tensor alone.
  virtual bool ops_reach_tensors() const { return true; }
  // True: its queue is for work that is captured in a graph. For the host, each event that is
  // recorded there happens at once. Scratch is kept as long as the domain: graphs use it whenever
  // they are launched.
  virtual bool is_for_captures() const { return false; }
  // False: allocate(bytes) would take long, so another thread is making the memory; ask again.
  // Throws Error if there is none.
  virtual bool has_at_hand(size_t /*bytes*/) { return true; }
  // Scratch that the ops of this device can use best (shared memory, registered memory). Never null
  // for bytes > 0. Released when no work that is enqueued uses it any more.
  virtual std::shared_ptr<std::byte> allocate(size_t bytes) = 0;
  // The work on tensors and scratch of one set, packing, collectives and unpacking, in one order.
  virtual MemoryQueue& queue() = 0;
  // For what is copied back to tensors while other work of the set is copied from them: a queue of
  // its own, where the two ways do not disturb each other. Each can wait for the other's events.
  virtual MemoryQueue& queue_back() { return queue(); }
};

}  // namespace horon::core
