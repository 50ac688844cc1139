// Fusion buffers, kept for reuse: fresh memory costs page faults.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "horon/core/execution/memory_domain.h"

namespace horon::core {

// One thread.
class ScratchPool {
 public:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    size_t capacity = 0;
  };

  // One domain per kind of device.
  explicit ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains);

  // Throws Error(Config) if there is none for this device.
  MemoryDomain& domain(DeviceKind device);
  // At least `bytes`; what it holds is anybody's.
  Buffer take(DeviceKind device, size_t bytes);
  void give_back(DeviceKind device, Buffer buffer);

 private:
  static constexpr size_t kSmallest = 64 << 10;
  static constexpr size_t kKept = 4;
  std::vector<std::unique_ptr<MemoryDomain>> domains_;
  std::array<std::vector<Buffer>, kDeviceKindCount> free_;
};

}  // namespace horon::core
