// Runs an op on device memory for a contract whose memory is the host's. What a batch reads is
// copied to the device before it, and what it has written is copied back after it, in the queue of
// the batch. 32 bytes before and after the output travel too, so that guards are checked on the
// device.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/tests/support/gpu/gpu.h"

namespace horon::test {

// Device memory that later work of the same stream reuses.
class DevicePool {
 public:
  explicit DevicePool(std::shared_ptr<ops::CudaApi> cuda) : cuda_(std::move(cuda)) {}
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  std::byte* take(size_t bytes);
  void give_back(std::byte* memory) { free_[size_of_.at(memory)].push_back(memory); }

 private:
  const std::shared_ptr<ops::CudaApi> cuda_;
  std::map<std::byte*, size_t> size_of_;
  std::map<size_t, std::vector<std::byte*>> free_;
};

// All batches must have the same queue, a CUDA queue, which must be idle when this object is
// destroyed.
class OnDevice final : public core::CollectiveOp {
 public:
  OnDevice(core::CollectiveOp& op, Gpu& gpu) : op_(op), gpu_(gpu), pool_(gpu.cuda()) {}

  std::string_view name() const override { return op_.name(); }
  std::string refusal(const core::BatchFacts& facts) const override { return op_.refusal(facts); }
  bool enqueues() const override { return true; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;
  void abort() noexcept override { op_.abort(); }

 private:
  core::CollectiveOp& op_;
  Gpu& gpu_;
  DevicePool pool_;
};

}  // namespace horon::test
