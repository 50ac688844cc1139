#include "horon/bench/peers.h"

#include "horon/bench/gloo_peer.h"
#include "horon/core/base/text.h"

namespace horon::bench {

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
      return mpi_.refusal(options.collective);
    case PeerKind::Tuned:
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
