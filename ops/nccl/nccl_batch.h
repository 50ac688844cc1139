// What one batch asks of NCCL: the calls, and what kernels of ours do before and after.
#pragma once

#include <memory>
#include <optional>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_api.h"
#include "horon/ops/nccl/nccl_reduction.h"

namespace horon::ops {

// The steps of a batch on this rank, in order; each is enqueued behind the one before.
class NcclBatch {
 public:
  NcclBatch(core::Batch batch, int rank, int size);

  // Scales the input into the memory from which the collective then takes it: the output, or, for a
  // reducescatter, whose output is smaller, scratch that is allocated here. nullopt: the collective
  // takes the input as it is.
  const std::optional<MoveLaunch>& before() const { return before_; }
  // Scales or divides the output. After it the scratch is not needed any more.
  const std::optional<MoveLaunch>& after() const { return after_; }
  // Makes the calls, between begin_group() and end_group(). It makes none for data of no length;
  // all ranks that such data would move between agree on that.
  void call(NcclApi& nccl, NcclComm comm) const;
  CudaQueue& queue() const { return *queue_; }

 private:
  void plan_scales();
  void scale_input(double factor);
  void exchange(NcclApi& nccl, NcclComm comm) const;
  void allgather(NcclApi& nccl, NcclComm comm) const;
  void reducescatter(NcclApi& nccl, NcclComm comm) const;

  CudaStream stream() const { return queue_->stream(); }

  core::Batch batch_;  // its input is where the collective takes it from
  CudaQueue* const queue_;
  std::shared_ptr<std::byte> scratch_;  // released in the order of the queue
  const int rank_;
  const int size_;
  const NcclReduction reduction_;
  std::optional<MoveLaunch> before_;
  std::optional<MoveLaunch> after_;
};

}  // namespace horon::ops
