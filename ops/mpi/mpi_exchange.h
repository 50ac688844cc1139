// Alltoall, gather and scatter of host memory: every member sends each other member its block.
// Blocks may have any length, and may be empty.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/mpi/mpi_channel.h"

namespace horon::ops {

class MpiExchange final : public core::CollectiveOp {
 public:
  // One op for each kind: Alltoall, Gather or Scatter.
  MpiExchange(std::shared_ptr<MpiChannel> channel, CollectiveKind kind);
  std::string_view name() const override;
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  std::shared_ptr<MpiChannel> channel_;
  const CollectiveKind kind_;
};

}  // namespace horon::ops
