// How NCCL makes the reductions of a batch: what it is asked for, what it can't do, and what our
// own kernels do before.
#pragma once

#include <cstdint>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/cuda/move.h"

namespace horon::ops {

struct NcclReduction {
  DataType dtype = DataType::Float32;  // NCCL has no bool: 0 and 1 as bytes
  ReduceOp op = ReduceOp::Sum;
  // The sum of float16 overflows where the average does not. So each rank's input is first
  // multiplied by this power of two, which is exact, but for numbers that become subnormal.
  double part = 1.0;
};
NcclReduction nccl_reduction(const core::Batch& batch);

// CollectiveOp::refusal() of an op that runs this kind by NCCL.
std::string nccl_refusal(const core::BatchFacts& facts, CollectiveKind kind);

// `launch` with this one stretch; `from` may be `to`.
MoveLaunch one_move(MoveLaunch launch, const std::byte* from, std::byte* to, int64_t count);

}  // namespace horon::ops
