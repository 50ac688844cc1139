// Barrier by MPI_Ibarrier.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/mpi/mpi_channel.h"

namespace horon::ops {

class MpiBarrier final : public core::CollectiveOp {
 public:
  explicit MpiBarrier(std::shared_ptr<MpiChannel> channel);
  std::string_view name() const override { return "mpi_barrier"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  std::shared_ptr<MpiChannel> channel_;
};

}  // namespace horon::ops
