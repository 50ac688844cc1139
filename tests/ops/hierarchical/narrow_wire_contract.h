// What reductions of float32 must do whose sums travel in 16 bits between hosts, for any ranks.
#pragma once

#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {

// Allreduce or Reducescatter, by an op whose `wire_dtype` is of 16 bits. Rank r is on host
// hosts[r]. Every length, place, scale and kind of memory, with infinities and NaN; the bits are
// those of a calculation element by element, on all ranks.
void check_narrow_wire(const World& world, core::CollectiveOp& op, CollectiveKind kind,
                       const std::vector<int>& hosts, DataType wire_dtype);
// What is not narrowed is as exact as with float32 on the wire.
void check_not_narrowed(const World& world, core::CollectiveOp& op);

}  // namespace horon::ops
