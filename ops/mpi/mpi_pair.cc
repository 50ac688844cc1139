#include "horon/ops/mpi/mpi_pair.h"

#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/ops/host/host_refusal.h"
#include "horon/ops/mpi/mpi_datatypes.h"
#include "horon/ops/mpi/mpi_in_flight.h"

namespace horon::ops {
namespace {

class InFlightMessage final : public MpiInFlight {
 public:
  InFlightMessage(std::shared_ptr<MpiChannel> shared, core::Batch given, int me, int peer)
      : MpiInFlight(std::move(shared), std::move(given)), sends_(batch().root == me), peer_(peer) {
    if (sends_ && batch().input != batch().output) set_prepare_count(batch().count);
  }

 private:
  int64_t bytes_of(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(batch().dtype));
  }

  // On the sender: copies the input to the output, as every root of a broadcast does.
  void prepare(int64_t begin, int64_t count) override {
    core::copy_bytes(batch().output + bytes_of(begin), batch().input + bytes_of(begin),
                     static_cast<size_t>(bytes_of(count)));
  }

  void post() override {
    const MPI_Datatype type = mpi_datatype(batch().dtype);
    const MPI_Comm all = channel().communicator();
    for_each_piece(batch().count, [&](int64_t begin, int count) {
      std::byte* const piece = batch().output + bytes_of(begin);
      if (sends_) {
        core::check_mpi(MPI_Isend(piece, count, type, peer_, MpiPair::kTag, all, add_request()),
                        "MPI_Isend");
      } else {
        core::check_mpi(MPI_Irecv(piece, count, type, peer_, MpiPair::kTag, all, add_request()),
                        "MPI_Irecv");
      }
    });
  }

  const bool sends_;
  const int peer_;
};

}  // namespace

MpiPair::MpiPair(std::shared_ptr<MpiChannel> channel, int me, int peer)
    : channel_(std::move(channel)), me_(me), peer_(peer) {}

std::string MpiPair::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Broadcast);
}

std::unique_ptr<core::InFlight> MpiPair::start(core::Batch batch) {
  return std::make_unique<InFlightMessage>(channel_, std::move(batch), me_, peer_);
}

}  // namespace horon::ops
