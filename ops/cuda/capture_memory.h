// Collectives in CUDA graphs: the queue and the scratch of what is captured.
//
// A program that captures its streams submits collectives as usual. The events of their tensors
// draw the queue below into the capture, the calls of NCCL become nodes of the graph, and the event
// for which the program's stream waits leads back. So the ranks agree on the order once, at the
// capture. A launch of the graph asks nobody: every member launches it equally often, and in the
// same order between its other collectives.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "horon/core/execution/memory_domain.h"
#include "horon/ops/cuda/cuda_memory.h"

namespace horon::ops {

class CaptureMemory final : public core::MemoryDomain {
 public:
  // `queue`: one for all sets of this rank (CudaQueue::Use::Captures): so the collectives of a
  // graph have one order among all sets, and no two of them wait for peers at the same time.
  // `is_open`: as in CudaMemory.
  CaptureMemory(int device, std::shared_ptr<CudaQueue> queue, std::function<bool()> is_open)
      : device_(device), queue_(std::move(queue)), is_open_(std::move(is_open)) {}

  DeviceKind device() const override { return DeviceKind::Cuda; }
  int device_index() const override { return device_; }
  bool is_open() override { return is_open_(); }
  bool is_for_captures() const override { return true; }
  // Throws Error if the device has no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    return bytes == 0 ? nullptr : queue_->allocate(bytes);
  }
  core::MemoryQueue& queue() override { return *queue_; }

 private:
  const int device_;
  const std::shared_ptr<CudaQueue> queue_;
  const std::function<bool()> is_open_;
};

}  // namespace horon::ops
