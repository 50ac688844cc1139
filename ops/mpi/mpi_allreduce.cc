#include "horon/ops/mpi/mpi_allreduce.h"

#include <utility>

#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/host/sum_type.h"
#include "horon/ops/mpi/mpi_reduction.h"

namespace horon::ops {
namespace {

// In place, Open MPI reduces along one tree, which takes longer than its other algorithms for long
// messages among several ranks. There a copy costs less.
bool pays_in_place(int ranks, const core::Batch& batch) {
  constexpr int64_t short_bytes = 64 << 10;
  const auto element_bytes = static_cast<int64_t>(size_of(sum_type(batch.dtype, batch.reduce_op)));
  return ranks < 4 || batch.count * element_bytes < short_bytes;
}

class InFlightAllreduce final : public MpiReduction {
 public:
  InFlightAllreduce(const std::shared_ptr<MpiChannel>& channel,
                    std::shared_ptr<const MpiReductions> reductions, const core::Batch& given)
      : MpiReduction(channel, std::move(reductions), given, given.count,
                     pays_in_place(channel->size(), given)) {}

 private:
  void post() override {
    const MPI_Op op = mpi_op();
    for_each_piece(batch().count, [&](int64_t begin, int count) {
      core::check_mpi(
          MPI_Iallreduce(mpi_input(begin), mpi_result(begin), count, mpi_datatype(work_dtype()), op,
                         channel().communicator(), add_request()),
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

bool MpiAllreduce::same_in_parts(const core::Batch& like) const {
  return same_in_any_order(like, channel_->size());
}

std::unique_ptr<core::InFlight> MpiAllreduce::start(core::Batch batch) {
  return std::make_unique<InFlightAllreduce>(channel_, reductions_, batch);
}

}  // namespace horon::ops
