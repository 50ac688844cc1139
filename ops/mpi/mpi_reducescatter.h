// Reducescatter of host memory by MPI_Ireduce_scatter. An input too long for its int counts is
// reduced by one MPI_Ireduce for each member and piece.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/mpi/mpi_channel.h"
#include "horon/ops/mpi/mpi_datatypes.h"

namespace horon::ops {

class MpiReducescatter final : public core::CollectiveOp {
 public:
  explicit MpiReducescatter(std::shared_ptr<MpiChannel> channel);
  std::string_view name() const override { return "mpi_reducescatter"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  bool same_in_parts(const core::Batch& like) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  std::shared_ptr<MpiChannel> channel_;
  std::shared_ptr<const MpiReductions> reductions_;
};

}  // namespace horon::ops
