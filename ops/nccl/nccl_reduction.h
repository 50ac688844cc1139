// How NCCL makes the sums and other reductions of a batch: what it is asked for, what it can't do,
// and what kernels of ours do before.
#pragma once

#include <cstdint>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/cuda/move.h"

namespace horon::ops {

struct NcclReduction {
  DataType dtype = DataType::Float32;  // NCCL has no bool: 0 and 1 as bytes
  ReduceOp op = ReduceOp::Sum;
  // The sum of float16 overflows where the average does not, so each rank's input is multiplied by
  // a power of two first: that is exact, but for numbers that become subnormal.
  double part = 1.0;
};
NcclReduction nccl_reduction(const core::Batch& batch);

// Empty if NCCL can make it. Of reductions on any memory.
std::string why_nccl_cannot_reduce(DataType dtype, ReduceOp op);

// Multiplies `count` > 0 elements of a floating type; `from` may be `to`.
MoveLaunch scale_all(DataType dtype, double factor, const std::byte* from, std::byte* to,
                     int64_t count);

}  // namespace horon::ops
