#include "horon/ops/mpi/mpi_allreduce.h"

#include <utility>

#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_reduction.h"

namespace horon::ops {
namespace {

class InFlightAllreduce final : public MpiReduction {
 public:
  InFlightAllreduce(std::shared_ptr<MpiChannel> channel,
                    std::shared_ptr<const MpiReductions> reductions, const core::Batch& given)
      : MpiReduction(std::move(channel), std::move(reductions), given, given.count) {}

 private:
  void post() override {
    const MPI_Op op = mpi_op();
    for_each_piece(batch().count, [&](int64_t begin, int count) {
      const size_t offset = work_bytes(begin);
      core::check_mpi(
          MPI_Iallreduce(mpi_input() + offset, mpi_result() + offset, count,
                         mpi_datatype(work_dtype()), op, channel().communicator(), add_request()),
          "MPI_Iallreduce");
    });
  }
};

}  // namespace

MpiAllreduce::MpiAllreduce(std::shared_ptr<MpiChannel> channel)
    : channel_(std::move(channel)), reductions_(std::make_shared<MpiReductions>()) {}

std::string MpiAllreduce::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Allreduce);
}

std::unique_ptr<core::InFlight> MpiAllreduce::start(core::Batch batch) {
  return std::make_unique<InFlightAllreduce>(channel_, reductions_, batch);
}

}  // namespace horon::ops
