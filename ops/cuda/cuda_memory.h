// The memory of one CUDA device, and a stream in which the work of one process set happens.
#pragma once

#include <memory>

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

// Where the scratch of a device comes from, if not from CUDA's own allocator.
class DeviceAllocator {
 public:
  virtual ~DeviceAllocator() = default;
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void free(std::byte* memory) noexcept = 0;
};

class CudaMemory final : public core::MemoryDomain {
 public:
  // `allocator`: null: CUDA's own.
  explicit CudaMemory(std::shared_ptr<CudaApi> api,
                      std::shared_ptr<DeviceAllocator> allocator = nullptr);

  DeviceKind device() const override { return DeviceKind::Cuda; }
  int device_index() const override { return api_->device(); }
  std::shared_ptr<std::byte> allocate(size_t bytes) override;
  core::MemoryQueue& queue() override { return queue_; }

 private:
  const std::shared_ptr<CudaApi> api_;
  const std::shared_ptr<DeviceAllocator> allocator_;
  CudaQueue queue_;
};

}  // namespace horon::ops
