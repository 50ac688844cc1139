// Allreduce among ranks that share one host and can map each other's memory. Results have the same
// bits on all ranks and from run to run: sums are taken in rank order, whoever takes them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/piece_allreduce.h"
#include "horon/ops/host/slot_allreduce.h"

namespace horon::ops {

// Of the ranks of `group`, all and no others take part. Its batches wait on the group's doorbells.
class SharedMemoryAllreduce final : public core::CollectiveOp {
 public:
  // `group` must be available and outlive the op. `area`: area_bytes() of zeroed memory that all
  // ranks share (a part of group.area()), 64-byte aligned, for this op alone.
  SharedMemoryAllreduce(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int local_size);

  std::string_view name() const override { return "shm_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  int64_t slot_bytes_max_;
  SlotAllreduce slots_;
  PieceAllreduce pieces_;
};

}  // namespace horon::ops
