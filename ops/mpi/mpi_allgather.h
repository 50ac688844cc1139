// Allgather of host memory by MPI_Iallgatherv. A result too long for its int counts is gathered by
// one broadcast for each rank and piece.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/mpi/mpi_channel.h"

namespace horon::ops {

class MpiAllgather final : public core::CollectiveOp {
 public:
  explicit MpiAllgather(std::shared_ptr<MpiChannel> channel);
  std::string_view name() const override { return "mpi_allgather"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  bool same_in_parts(const core::Batch& /*like*/) const override { return true; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  std::shared_ptr<MpiChannel> channel_;
};

}  // namespace horon::ops
