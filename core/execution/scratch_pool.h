// Memory that collectives need beside the tensors: fusion buffers, and what ops convert into. It is
// kept for reuse, since fresh memory costs page faults.
//
// A buffer may be given back as soon as all work that uses it is enqueued: whoever takes it next
// enqueues its own behind that.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "horon/core/execution/memory_domain.h"

namespace horon::core {

// One thread at a time.
class ScratchPool {
 public:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    size_t capacity = 0;               // bytes
    std::shared_ptr<Event> last_used;  // null: nothing that is enqueued uses it
  };

  static constexpr size_t kNoLimit = ~size_t{0};

  // One domain per kind of device. `bytes_max` for each: all that the pool holds, whether it is
  // taken, still used by the device, or kept. Only callers that must not wait go beyond it; the
  // last buffer that came back is kept, even if it is larger.
  explicit ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains,
                       size_t bytes_max = kNoLimit);
  // Memory that is in use is kept for ever.
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // Null if there is none.
  MemoryDomain* find(DeviceKind device) const;
  // Throws Error(Config) if there is none.
  MemoryDomain& domain(DeviceKind device) const;
  // False: take() would go beyond the limit. Throws Error if the device has failed.
  bool has_room(DeviceKind device, size_t bytes) const;
  // At least `bytes`, not initialised. Throws Error if there is no memory, or the device has
  // failed.
  Buffer take(DeviceKind device, size_t bytes);
  // `last_used`: happens when all enqueued work that uses the buffer is done; null: it is done.
  void give_back(DeviceKind device, Buffer buffer, std::shared_ptr<Event> last_used) noexcept;
  // Somebody may use it as long as the process lives: it is kept for ever.
  void leak(Buffer buffer) noexcept;

  // Of all devices together.
  struct Usage {
    size_t bytes = 0;
    size_t bytes_peak = 0;
  };
  Usage usage() const { return usage_; }
  size_t bytes_max() const { return bytes_max_; }

 private:
  static constexpr size_t kSmallest = 64 << 10;

  struct OfDevice {
    std::vector<Buffer> free;  // in the order in which they came back
    size_t buffers = 0;        // taken or free
    size_t bytes = 0;          // of these
  };
  using FreeBuffer = std::vector<Buffer>::iterator;

  static size_t size_class(size_t bytes);
  static FreeBuffer smallest_free(OfDevice& of, size_t bytes, size_t bytes_max);
  bool may_hold_more(const OfDevice& of, size_t bytes) const;
  Buffer allocate(DeviceKind device, size_t bytes);
  void release_unused(OfDevice& of, size_t count, size_t bytes_max);

  const std::vector<std::unique_ptr<MemoryDomain>> domains_;
  const size_t bytes_max_;
  std::array<OfDevice, kDeviceKindCount> devices_;
  Usage usage_;
};

}  // namespace horon::core
