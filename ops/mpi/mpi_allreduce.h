// Allreduce of host memory by MPI_Iallreduce.
//
// 16-bit floats are widened to float, reduced, and rounded once. Averages of integers are summed in
// 64 bits. All ranks get the same bits if MPI adds in the same order for every rank, as Open MPI's
// algorithms do.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/mpi/mpi_channel.h"
#include "horon/ops/mpi/mpi_datatypes.h"

namespace horon::ops {

class MpiAllreduce final : public core::CollectiveOp {
 public:
  explicit MpiAllreduce(std::shared_ptr<MpiChannel> channel);
  std::string_view name() const override { return "mpi_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  // True if the order of additions changes no bits: MPI chooses it by the length, and by the place
  // of an element.
  bool same_in_parts(const core::Batch& like) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  std::shared_ptr<MpiChannel> channel_;
  std::shared_ptr<const MpiReductions> reductions_;
};

}  // namespace horon::ops
