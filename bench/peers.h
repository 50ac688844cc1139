// The peers of one run, those that this build and this MPI have.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "horon/bench/mpi_algorithms.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"
#include "horon/bench/peer.h"

namespace horon::bench {

class Peers {
 public:
  // Collective over the members of `mpi`, which must outlive the object. `rank`: the index of this
  // process among them.
  Peers(const Options& options, MpiPeer& mpi, int rank);

  // The kinds of options.peers that can be timed.
  const std::vector<PeerKind>& kinds() const { return kinds_; }
  bool has(PeerKind kind) const { return std::ranges::find(kinds_, kind) != kinds_.end(); }
  // A line for each kind that is left out, with the reason.
  const std::string& left_out() const { return left_out_; }

  // The peer that is timed as `kind` for messages of `bytes`. For Tuned, choose() calls `time`: see
  // MpiAlgorithms::choose().
  struct Choice {
    Peer* peer;
    std::string algorithm;  // "": the peer's own choice
  };
  Choice choose(PeerKind kind, int64_t bytes, const std::function<double(Peer&)>& time);

 private:
  // Why `kind` can't be timed; empty if it can.
  std::string open(PeerKind kind, const Options& options, int rank);

  MpiPeer& mpi_;
  std::vector<PeerKind> kinds_;
  std::string left_out_;
  std::unique_ptr<MpiAlgorithms> algorithms_;
  std::unique_ptr<Peer> gloo_;
};

}  // namespace horon::bench
