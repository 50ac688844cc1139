// The collectives of one process set on the memory of CUDA devices, by NCCL.
//
// Sums are always NCCL's plain sum: its average multiplies in the type of the elements, which is
// biased in 16 bits, and takes slower paths. Scales and divisors are applied by kernels of our own
// before and after, in float32.
//
// Unlike the ops on host memory, NCCL sums 16-bit types in their own type, with a rounding for each
// rank that is added (in a window it may sum in float32), in an order that depends on its
// algorithm. A sum of float16 that leaves the range is infinite; an average is not. In Min and Max
// a number wins over a NaN.
#pragma once

#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/nccl/nccl_line.h"

namespace horon::ops {

// Allreduce, reducescatter, broadcast, allgather, alltoall, gather and scatter. They use the
// communicator one after the other, in the order of their batches. A barrier moves nothing: from it
// on, the set's collectives keep an order with those of other sets (NcclLine::keep_order()).
// `wants_ready_tensors`: see CollectiveOp.
std::vector<std::unique_ptr<core::CollectiveOp>> make_nccl_ops(
    const std::shared_ptr<NcclLine>& line, bool wants_ready_tensors = false);

}  // namespace horon::ops
