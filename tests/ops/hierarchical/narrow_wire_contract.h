// What reductions of float32 must do whose sums are rounded to travel between hosts, for any ranks.
#pragma once

#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {

// Allreduce or Reducescatter, by an op that is allowed to send in this type of 16 bits; or
// Allreduce of batches for blocks of int8. Rank r is on host hosts[r]. Every length, place, scale
// and kind of memory, with infinities and NaN; the bits are those of a calculation element by
// element, on all ranks.
void check_narrow_wire(const World& world, core::CollectiveOp& op, CollectiveKind kind,
                       const std::vector<int>& hosts, WireType wire_type);
// What is not narrowed is as exact as with float32 on the wire.
void check_not_narrowed(const World& world, core::CollectiveOp& op);

}  // namespace horon::ops
