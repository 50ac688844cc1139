#include "horon/ops/mpi/mpi_reducescatter.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/core/execution/block_layout.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_reduction.h"

namespace horon::ops {
namespace {

class InFlightReducescatter final : public MpiReduction {
 public:
  InFlightReducescatter(std::shared_ptr<MpiChannel> channel,
                        std::shared_ptr<const MpiReductions> reductions, const core::Batch& given)
      : MpiReduction(std::move(channel), std::move(reductions), given,
                     core::total(given.send_counts), false),
        input_count_(core::total(given.send_counts)) {
    HORON_CHECK(batch().send_counts.size() == static_cast<size_t>(this->channel().size()),
                "one count for each rank");
  }

 private:
  void post() override {
    const MPI_Datatype type = mpi_datatype(work_dtype());
    if (input_count_ <= channel().piece_elements_max()) {
      for (const int64_t count : batch().send_counts) counts_.push_back(static_cast<int>(count));
      core::check_mpi(MPI_Ireduce_scatter(mpi_input(0), mpi_result(0), counts_.data(), type,
                                          mpi_op(), channel().communicator(), add_request()),
                      "MPI_Ireduce_scatter");
      return;
    }
    int64_t of_root = 0;  // where its block begins
    for (int root = 0; root < channel().size(); ++root) {
      const int64_t block = batch().send_counts[static_cast<size_t>(root)];
      for_each_piece(block, [&](int64_t begin, int count) {
        core::check_mpi(MPI_Ireduce(mpi_input(of_root + begin), mpi_result(begin), count, type,
                                    mpi_op(), root, channel().communicator(), add_request()),
                        "MPI_Ireduce");
      });
      of_root += block;
    }
  }

  const int64_t input_count_;
  std::vector<int> counts_;  // MPI reads these until the collective is complete
};

}  // namespace

MpiReducescatter::MpiReducescatter(std::shared_ptr<MpiChannel> channel)
    : channel_(std::move(channel)), reductions_(std::make_shared<MpiReductions>()) {}

std::string MpiReducescatter::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Reducescatter);
}

bool MpiReducescatter::same_in_parts(const core::Batch& like) const {
  return same_in_any_order(like, channel_->size());
}

std::unique_ptr<core::InFlight> MpiReducescatter::start(core::Batch batch) {
  return std::make_unique<InFlightReducescatter>(channel_, reductions_, batch);
}

}  // namespace horon::ops
