#include "horon/ops/mpi/mpi_allreduce.h"

#include <utility>

#include "horon/core/transport/mpi_error.h"
#include "horon/ops/host_refusal.h"
#include "horon/ops/mpi/mpi_reduction.h"

namespace horon::ops {
namespace {

class InFlightAllreduce final : public MpiReduction {
 public:
  InFlightAllreduce(std::shared_ptr<MpiChannel> channel,
                    std::shared_ptr<const MpiReductions> reductions, const core::Batch& given)
      : MpiReduction(std::move(channel), std::move(reductions), given, given.count) {
    std::byte* work = widened() ? take_scratch(work_bytes(batch().count)) : batch().output;
    in_place_ = converts_input() || batch().input == batch().output;
    set_work(work, work);
  }

 private:
  void post() override {
    const MPI_Op op = mpi_op();
    for_each_piece(batch().count, [&](int64_t begin, int count) {
      const size_t offset = work_bytes(begin);
      const void* from = in_place_ ? MPI_IN_PLACE : batch().input + offset;
      core::check_mpi(
          MPI_Iallreduce(from, work_result() + offset, count, mpi_datatype(work_dtype()), op,
                         channel().communicator(), add_request()),
          "MPI_Iallreduce");
    });
  }

  bool in_place_ = false;
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
