// Scratch in host memory that the device reaches, for collectives that the host makes on tensors of
// the device: kernels pack the tensors into it and unpack the results.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "horon/core/execution/memory_domain.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/cuda/free_pinned.h"

namespace horon::ops {

class PinnedMemory final : public core::MemoryDomain {
 public:
  using Open = std::function<std::shared_ptr<CudaApi>()>;
  // As CudaMemory.
  PinnedMemory(int device, Open open, std::function<bool()> is_open)
      : device_(device),
        open_(std::move(open)),
        is_open_(std::move(is_open)),
        queue_(open_),
        queue_back_(open_) {}

  DeviceKind device() const override { return DeviceKind::Cuda; }
  int device_index() const override { return device_; }
  bool is_open() override { return is_open_(); }
  bool ops_reach_tensors() const override { return false; }
  // Throws Error if the device can't be opened, or the host has no memory to pin.
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    const std::shared_ptr<CudaApi> api = open_();
    return {api->allocate_pinned(bytes),
            [api](std::byte* memory) { free_pinned_elsewhere(api, memory); }};
  }
  core::MemoryQueue& queue() override { return queue_; }
  // The bus carries both ways at the same time.
  core::MemoryQueue& queue_back() override { return queue_back_; }

 private:
  const int device_;
  const Open open_;
  const std::function<bool()> is_open_;
  CudaQueue queue_;
  CudaQueue queue_back_;
};

}  // namespace horon::ops
