// Fusion buffers, kept for reuse: fresh memory costs page faults.
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
    size_t capacity = 0;
    size_t asked = 0;                  // bytes that take() was asked for
    std::shared_ptr<Event> last_used;  // null: nothing that is enqueued uses it
  };

  static constexpr size_t kNoLimit = ~size_t{0};

  // One domain per kind of device. `bytes_max` for each: what may be taken at one time, where
  // callers ask has_room() first.
  explicit ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains,
                       size_t bytes_max = kNoLimit);
  // Memory that is in use is kept for ever.
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // Throws Error(Config) if there is none for this device.
  MemoryDomain& domain(DeviceKind device);
  // One buffer may always be taken, however large.
  bool has_room(DeviceKind device, size_t bytes) const;
  // At least `bytes`; what it holds is anybody's.
  Buffer take(DeviceKind device, size_t bytes);
  // `last_used`: happens when all enqueued work that uses it has; null: it has.
  void give_back(DeviceKind device, Buffer buffer, std::shared_ptr<Event> last_used) noexcept;
  // Somebody may use it as long as the process lives: it is kept for ever.
  void leak(DeviceKind device, Buffer buffer) noexcept;

 private:
  static constexpr size_t kSmallest = 64 << 10;
  static constexpr size_t kKept = 4;

  void release_unused();
  static void keep_what_is_used(std::vector<Buffer>& buffers) noexcept;

  struct OfDevice {
    std::vector<Buffer> free;
    size_t taken = 0;  // bytes that takers have asked for
  };

  const std::vector<std::unique_ptr<MemoryDomain>> domains_;
  const size_t bytes_max_;
  std::array<OfDevice, kDeviceKindCount> devices_;
  std::vector<Buffer> too_many_;  // to be released when they are not in use
};

}  // namespace horon::core
