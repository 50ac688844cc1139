// Work on the memory of one device, in the order in which it is given: a CUDA stream, or the
// calling thread itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/event.h"

namespace horon::core {

struct CopyItem {
  const std::byte* from = nullptr;  // null: `to` is filled with `pattern`, over and over
  std::byte* to = nullptr;
  size_t bytes = 0;  // of `from`, or to be filled: a multiple of the size of an element; may be 0
  // Narrow: float32 to this type of 16 bits; Widen: back. Each value is multiplied by `factor` in
  // float32.
  enum class Cast : uint8_t { None, Narrow, Widen };
  Cast cast = Cast::None;
  Compression type = Compression::None;
  double factor = 1.0;   // with a cast only
  uint64_t pattern = 0;  // eight bytes of equal elements, as they lie in memory
};

// All calls return at once; none waits for the device. They throw horon::Error if the device has
// failed. One thread at a time.
class MemoryQueue {
 public:
  virtual ~MemoryQueue() = default;
  // True for host memory: the work of a call is done when it returns. Then big copies are given in
  // pieces. False: they are given whole, and what a call enqueues happens later, behind all that
  // was enqueued before.
  virtual bool immediate() const = 0;
  // What is enqueued from now on happens after `event`, which may be destroyed once this returns.
  // False: this queue can't wait for such an event, so the host must look at it.
  virtual bool wait_for(Event& event) = 0;
  // Enqueues copies, casts and fills, none of which depends on another. The items may be destroyed
  // once this returns.
  virtual void copy(std::span<const CopyItem> items) = 0;
  // Happens after all that has been enqueued. Null if immediate().
  virtual std::shared_ptr<Event> record() = 0;
};

}  // namespace horon::core
