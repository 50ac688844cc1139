// Allreduce among ranks that share one host and can map each other's memory. Sums are taken in rank
// order, whichever rank takes them, so results have the same bits on all ranks and in every run.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/choice/machine_constants.h"
#include "horon/ops/host/piece_allreduce.h"
#include "horon/ops/host/small_allreduce.h"

namespace horon::ops {

// All ranks of `group` take part, and no others. Ranks that wait sleep on the group's doorbells.
class SharedMemoryAllreduce final : public core::CollectiveOp {
 public:
  // `group` must be available and outlive the op. `area`: area_bytes() of zeroed memory that all
  // ranks share (a part of group.area()), 64-byte aligned, for this op alone.
  // The constants are the same on all ranks.
  SharedMemoryAllreduce(core::LocalGroup& group, std::byte* area,
                        const MachineConstants& constants = {});
  static size_t area_bytes(int local_size);

  std::string_view name() const override { return "shm_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  core::PieceSizes piece_sizes(const core::Batch& like) const override;
  // Every element is summed by itself, in rank order.
  bool same_in_parts(const core::Batch& /*like*/) const override { return true; }
  core::StartOrder start_order() const override { return core::StartOrder::Op; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  const MachineConstants constants_;
  const int ranks_;
  SmallAllreduce cells_;
  PieceAllreduce pieces_;
};

}  // namespace horon::ops
