#include "horon/ops/mpi/mpi_broadcast.h"

#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {
namespace {

class InFlightBroadcast final : public MpiInFlight {
 public:
  InFlightBroadcast(std::shared_ptr<MpiChannel> shared, core::Batch given)
      : MpiInFlight(std::move(shared), std::move(given)) {
    const bool root = channel().rank() == batch().root;
    if (root && batch().input != batch().output) set_prepare_count(batch().count);
  }

 private:
  // On the root: copies the input to the output.
  void prepare(int64_t begin, int64_t count) override {
    const auto bytes = static_cast<int64_t>(size_of(batch().dtype));
    core::copy_bytes(batch().output + begin * bytes, batch().input + begin * bytes,
                     static_cast<size_t>(count * bytes));
  }

  void post() override {
    const auto bytes = static_cast<int64_t>(size_of(batch().dtype));
    for_each_piece(batch().count, [&](int64_t begin, int count) {
      core::check_mpi(MPI_Ibcast(batch().output + begin * bytes, count, mpi_datatype(batch().dtype),
                                 batch().root, channel().communicator(), add_request()),
                      "MPI_Ibcast");
    });
  }
};

}  // namespace

MpiBroadcast::MpiBroadcast(std::shared_ptr<MpiChannel> channel) : channel_(std::move(channel)) {}

std::string MpiBroadcast::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Broadcast);
}

std::unique_ptr<core::InFlight> MpiBroadcast::start(core::Batch batch) {
  return std::make_unique<InFlightBroadcast>(channel_, std::move(batch));
}

}  // namespace horon::ops
