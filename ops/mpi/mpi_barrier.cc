#include "horon/ops/mpi/mpi_barrier.h"

#include <utility>

#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {
namespace {

class InFlightBarrier final : public MpiInFlight {
 public:
  using MpiInFlight::MpiInFlight;

 private:
  void post() override {
    core::check_mpi(MPI_Ibarrier(channel().communicator(), add_request()), "MPI_Ibarrier");
  }
};

}  // namespace

MpiBarrier::MpiBarrier(std::shared_ptr<MpiChannel> channel) : channel_(std::move(channel)) {}

std::string MpiBarrier::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Barrier);
}

std::unique_ptr<core::InFlight> MpiBarrier::start(core::Batch batch) {
  return std::make_unique<InFlightBarrier>(channel_, std::move(batch));
}

}  // namespace horon::ops
