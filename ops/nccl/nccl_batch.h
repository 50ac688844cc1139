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

  // Scales the input, where that is needed, into the memory from which the collective then takes
  // it: the output, or, for a reducescatter, whose output is smaller, scratch that is allocated
  // now. Throws Error.
  void enqueue_before();
  // Makes the calls, between begin_group() and end_group(). It makes none for data of no length;
  // all ranks that such data would move between agree on that.
  void call(NcclApi& nccl, NcclComm comm) const;
  // Scales or divides the output, where that is needed, once the calls are in the queue. Gives the
  // scratch back in the order of the queue: the next batch takes it while the device is still busy
  // with this one.
  void enqueue_after();
  CudaQueue& queue() const { return *queue_; }

 private:
  void plan_scales();
  void exchange(NcclApi& nccl, NcclComm comm) const;
  void allgather(NcclApi& nccl, NcclComm comm) const;
  void reducescatter(NcclApi& nccl, NcclComm comm) const;

  CudaStream stream() const { return queue_->stream(); }

  core::Batch batch_;  // its input is where the collective takes it from
  CudaQueue* const queue_;
  std::shared_ptr<std::byte> scratch_;
  const int rank_;
  const int size_;
  const NcclReduction reduction_;
  double input_factor_ = 1;  // that the input is multiplied by before
  std::optional<MoveLaunch> after_;
};

}  // namespace horon::ops
