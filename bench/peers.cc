#include "horon/bench/peers.h"

#include <limits>

#include "horon/bench/collective_case.h"
#include "horon/bench/gloo_peer.h"
#include "horon/core/base/text.h"

namespace horon::bench {
namespace {

// Why MPI can't take the largest message; empty if it can.
std::string refusal_of_size(const Options& options, int ranks) {
  const CollectiveKind kind = options.collective;
  const int64_t bytes = options.sizes().back();
  const Shape shape = find_case(kind).shape(bytes, options.dtype, ranks);
  int64_t count = std::min(shape.input_count, shape.output_count);
  if (kind == CollectiveKind::Alltoall) count /= ranks;
  if (!core::reduces(kind)) count *= static_cast<int64_t>(size_of(options.dtype));
  if (count <= std::numeric_limits<int>::max()) return "";
  return core::concat("MPI counts in 32 bits, and a message of ", core::bytes_text(bytes),
                      " has more to count than that");
}

}  // namespace

Peers::Peers(const Options& options, MpiPeer& mpi, int rank) : mpi_(mpi) {
  for (const PeerKind kind : options.peers) {
    const std::string reason = open(kind, options, rank);
    if (reason.empty()) {
      kinds_.push_back(kind);
    } else {
      left_out_ += core::concat("# ", to_string(kind), " is left out: ", reason, "\n");
    }
  }
}

std::string Peers::open(PeerKind kind, const Options& options, int rank) {
  switch (kind) {
    case PeerKind::Mpi:
      return refusal_of_size(options, mpi_.size());
    case PeerKind::Tuned:
      if (std::string refusal = refusal_of_size(options, mpi_.size()); !refusal.empty()) {
        return refusal;
      }
      algorithms_ = std::make_unique<MpiAlgorithms>(options.collective, mpi_);
      return algorithms_->unavailable();
    case PeerKind::Gloo:
      break;
  }
  std::string unavailable;
  gloo_ = make_gloo_peer(mpi_, rank, options.collective, options.gloo_interface, unavailable);
  return unavailable;
}

Peers::Choice Peers::choose(PeerKind kind, int64_t bytes,
                            const std::function<double(Peer&)>& time) {
  if (kind == PeerKind::Mpi) return {&mpi_, ""};
  if (kind == PeerKind::Gloo) return {gloo_.get(), ""};
  const MpiAlgorithms::Choice best = algorithms_->choose(bytes, time);
  return {best.peer, best.name};
}

}  // namespace horon::bench
