// What a rank tells the others of the host before it arrives in an exchange: where its memory lies,
// and how they reach it.
#pragma once

#include <cstdint>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/block_plan.h"
#include "horon/ops/host/exchange_area.h"

namespace horon::ops {

// Writes into `cell` all that this rank writes there before it arrives. Call it once all ranks have
// left the cell's last exchange. A short input is copied into the cell. `by_kernel`: the kernel
// copies long blocks of private memory, where it may; the same on all ranks. Returns the number of
// blocks that the rank waits for: those that it gets, and those that it gives from its own memory.
uint32_t offer_memory(core::LocalGroup& group, const ExchangeCell& cell, const core::Batch& batch,
                      const BlockPlan& plan, bool by_kernel);

}  // namespace horon::ops
