// The memory of one CUDA device, and a stream in which the work of one process set runs.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "horon/core/execution/memory_domain.h"
#include "horon/ops/cuda/cuda_api.h"

namespace horon::ops {

class CudaQueue final : public core::MemoryQueue {
 public:
  // Captures: its work becomes part of the graph that is being captured in the stream whose event
  // it has waited for last (capture_memory.h).
  enum class Use : uint8_t { Eager, Captures };

  // Does not touch the device before there is work for it: then `open` is called, once. So each
  // call may throw what `open` throws.
  explicit CudaQueue(std::function<std::shared_ptr<CudaApi>()> open, Use use = Use::Eager)
      : open_(std::move(open)), use_(use) {}
  explicit CudaQueue(std::shared_ptr<CudaApi> api)
      : stream_(std::make_shared<Stream>(std::move(api))) {}
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  bool immediate() const override { return false; }
  // False for all but events of CUDA.
  bool wait_for(core::Event& event) override;
  // One launch for each kind of copy among them.
  void copy(std::span<const core::CopyItem> items) override;
  std::shared_ptr<core::Event> record() override;

  // Device memory for work that is enqueued from now on. It may be released as soon as all work
  // that uses it is enqueued; that waits for nothing. It may outlive the queue. Captures: the queue
  // keeps the memory and gives it out again, since graphs use it whenever they are launched.
  // Programs must let one launch wait for the other.
  std::shared_ptr<std::byte> allocate(size_t bytes);
  void launch(const MoveLaunch& launch) { api().launch(launch, stream()); }
  // As CudaApi::copy().
  void copy_stretch(std::byte* to, const std::byte* from, size_t bytes) {
    api().copy(to, from, bytes, stream());
  }
  CudaStream stream() { return opened()->handle; }
  bool is_for_captures() const { return use_ == Use::Captures; }

 private:
  struct Stream {
    explicit Stream(std::shared_ptr<CudaApi> of)
        : api(std::move(of)), handle(api->create_stream()) {}
    ~Stream() { api->destroy_stream(handle); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    const std::shared_ptr<CudaApi> api;
    const CudaStream handle;
  };

  const std::shared_ptr<Stream>& opened() {
    if (stream_ == nullptr) stream_ = std::make_shared<Stream>(open_());
    return stream_;
  }
  CudaApi& api() { return *opened()->api; }

  const std::function<std::shared_ptr<CudaApi>()> open_;
  const Use use_ = Use::Eager;
  std::shared_ptr<Stream> stream_;  // null: not open yet
  struct Kept {
    std::shared_ptr<std::byte> memory;
    size_t bytes;
  };
  std::vector<Kept> kept_;  // memory that nobody else holds is given out again
};

class CudaMemory final : public core::MemoryDomain {
 public:
  // `open`: as in CudaQueue; it returns at once after `is_open` has returned true. `is_open` null:
  // it always does.
  CudaMemory(int device, std::function<std::shared_ptr<CudaApi>()> open,
             std::function<bool()> is_open = nullptr)
      : device_(device), is_open_(std::move(is_open)), queue_(std::move(open)) {}
  explicit CudaMemory(std::shared_ptr<CudaApi> api)
      : device_(api->device()), queue_(std::move(api)) {}

  DeviceKind device() const override { return DeviceKind::Cuda; }
  int device_index() const override { return device_; }
  bool is_open() override { return is_open_ == nullptr || is_open_(); }
  // In the order of the queue. Throws Error if the device can't be opened, or has no memory.
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    return bytes == 0 ? nullptr : queue_.allocate(bytes);
  }
  core::MemoryQueue& queue() override { return queue_; }

 private:
  const int device_;
  const std::function<bool()> is_open_;  // null: always open
  CudaQueue queue_;
};

}  // namespace horon::ops
