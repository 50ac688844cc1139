// The memory of one CUDA device, and a stream in which the work of one process set happens.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "horon/core/execution/memory_domain.h"
#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

class CudaQueue final : public core::MemoryQueue {
 public:
  explicit CudaQueue(std::shared_ptr<CudaApi> api);
  ~CudaQueue() override { api_->destroy_stream(stream_); }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  bool immediate() const override { return false; }
  // False for all but events of CUDA.
  bool wait_for(core::Event& event) override;
  // One launch for each kind of copy among them.
  void copy(std::span<const core::CopyItem> items) override;
  std::shared_ptr<core::Event> record() override;

  void launch(const MoveLaunch& launch) { api_->launch(launch, stream_); }
  CudaStream stream() const { return stream_; }

 private:
  const std::shared_ptr<CudaApi> api_;
  const CudaStream stream_;
};

class CudaMemory final : public core::MemoryDomain {
 public:
  // Nothing is asked of the device before there is work for it: `open` is called once, then.
  CudaMemory(int device, std::function<std::shared_ptr<CudaApi>()> open);
  explicit CudaMemory(std::shared_ptr<CudaApi> api);

  DeviceKind device() const override { return DeviceKind::Cuda; }
  int device_index() const override { return device_; }
  // Throw Error if the device can't be opened.
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  core::MemoryQueue& queue() override;

 private:
  const int device_;
  const std::function<std::shared_ptr<CudaApi>()> open_;
  std::shared_ptr<CudaApi> api_;  // null: not open yet
  std::optional<CudaQueue> queue_;
};

}  // namespace horon::ops
