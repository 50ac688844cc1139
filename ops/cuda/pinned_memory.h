// Scratch in host memory that the device reaches, for collectives that the host makes on tensors of
// the device: kernels pack the tensors into it and unpack the results.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/memory_domain.h"
#include "horon/ops/cuda/background_call.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/cuda/free_pinned.h"

namespace horon::ops {

class PinnedMemory final : public core::MemoryDomain {
 public:
  using Open = std::function<std::shared_ptr<CudaApi>()>;
  using Memory = std::shared_ptr<std::byte>;
  // As CudaMemory; but other threads call `open` too, and may do so after this object is destroyed.
  PinnedMemory(int device, Open open, std::function<bool()> is_open)
      : device_(device),
        open_(std::move(open)),
        is_open_(std::move(is_open)),
        queue_(open_),
        queue_back_(open_) {}
  ~PinnedMemory() override {
    making_.reset();
    made_.reset();
    frees_->wait();
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  DeviceKind device() const override { return DeviceKind::Cuda; }
  int device_index() const override { return device_; }
  bool is_open() override { return is_open_(); }
  bool ops_reach_tensors() const override { return false; }
  // Pinning memory may wait for all work of the device, also for kernels that wait for peers. So it
  // is done on a separate thread, one piece after the other. A piece that is not taken, since a
  // buffer of the pool came back before, serves the next request, or makes room for another length.
  bool has_at_hand(size_t bytes) override {
    if (bytes == 0) return true;
    if (making_ != nullptr) {
      if (!has_been_made(bytes)) return false;
      making_.reset();
    }
    if (made_ != nullptr && made_bytes_ == bytes) return true;
    made_.reset();
    begin_to_make(bytes);
    return false;
  }
  // Gives the memory that has_at_hand() has made, if it has this length. Throws Error if the device
  // can't be opened, or the host has no memory to pin.
  Memory allocate(size_t bytes) override {
    if (bytes == 0) return nullptr;
    if (made_ != nullptr && made_bytes_ == bytes) return std::exchange(made_, nullptr);
    return pin(open_(), frees_, bytes);
  }
  core::MemoryQueue& queue() override { return queue_; }
  // The bus carries both ways at the same time.
  core::MemoryQueue& queue_back() override { return queue_back_; }

 private:
  // A failure for another length is not the caller's, who wants `bytes`.
  bool has_been_made(size_t bytes) {
    try {
      std::optional<Memory> made = making_->take();
      if (!made) return false;
      made_ = std::move(*made);
      made_bytes_ = making_bytes_;
    } catch (const Error&) {
      if (making_bytes_ == bytes) throw;
    }
    return true;
  }
  void begin_to_make(size_t bytes) {
    making_bytes_ = bytes;
    making_ = std::make_unique<BackgroundCall<Memory>>([open = open_, frees = frees_, bytes] {
      const std::shared_ptr<CudaApi> api = open();
      api->use_in_own_thread();
      return pin(api, frees, bytes);
    });
  }
  static Memory pin(const std::shared_ptr<CudaApi>& api, const std::shared_ptr<PinnedFrees>& frees,
                    size_t bytes) {
    return {api->allocate_pinned(bytes),
            [api, frees](std::byte* memory) { frees->free(api, memory); }};
  }

  const int device_;
  const Open open_;
  const std::function<bool()> is_open_;
  const std::shared_ptr<PinnedFrees> frees_ = std::make_shared<PinnedFrees>();
  std::unique_ptr<BackgroundCall<Memory>> making_;  // null: nobody has asked
  size_t making_bytes_ = 0;
  Memory made_;  // waits to be taken; null: there is none
  size_t made_bytes_ = 0;
  CudaQueue queue_;
  CudaQueue queue_back_;
};

}  // namespace horon::ops
