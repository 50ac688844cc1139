// Gives back pinned memory without a wait for the device.
#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

// cudaFreeHost() may wait for all work of the device, also for kernels that wait for other ranks.
// So it is called on threads of their own, which may outlive this object. Any thread; nothing here
// throws.
class PinnedFrees {
 public:
  // Returns at once.
  void free(std::shared_ptr<CudaApi> api, std::byte* memory) noexcept;
  // Waits until all has been given back, but not longer than this. If nothing runs on the device it
  // takes no time.
  void wait(std::chrono::milliseconds at_most = std::chrono::milliseconds(200)) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::future<void>> under_way_;
};

// Gives one piece of memory back, with that wait.
inline void free_pinned_elsewhere(std::shared_ptr<CudaApi> api, std::byte* memory) noexcept {
  PinnedFrees frees;
  frees.free(std::move(api), memory);
  frees.wait();
}

}  // namespace horon::ops
