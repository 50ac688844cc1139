// What reductions of float32 must do if their sums are rounded to travel between hosts, for any
// ranks.
#pragma once

#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {

// Checks Allreduce or Reducescatter by an op that may send in this type of 16 bits, or Allreduce of
// batches that may be sent as blocks of int8. Rank r is on host hosts[r]. Tries every length,
// place, scale and kind of memory, with infinities and NaN. The bits on all ranks must be those of
// a calculation element by element.
void check_narrow_wire(const World& world, core::CollectiveOp& op, CollectiveKind kind,
                       const std::vector<int>& hosts, WireType wire_type);
// Checks that reductions which are not narrowed are as exact as with float32 on the wire.
void check_not_narrowed(const World& world, core::CollectiveOp& op);

}  // namespace horon::ops
