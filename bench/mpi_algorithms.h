// The algorithms that Open MPI has for a collective, so that its best one can be timed beside the
// one that it takes by itself.
//
// Open MPI reads the variables coll_tuned_KIND_algorithm when a communicator is made. They are set
// through MPI's tools interface, and a communicator is made for each algorithm; so all of them are
// timed in one run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "horon/bench/mpi_peer.h"
#include "horon/core/base/entry_spec.h"

namespace horon::bench {

class MpiAlgorithms {
 public:
  // Before MPI is initialized, on every rank: without this Open MPI ignores the variables.
  static void allow();

  // Collective over the members of `mpi`, which must outlive the object.
  MpiAlgorithms(CollectiveKind kind, MpiPeer& mpi);

  // Why there is no algorithm to choose; empty if there is one.
  const std::string& unavailable() const { return unavailable_; }

  struct Choice {
    MpiPeer* peer;
    std::string name;  // "ring", "segmented_ring 1 MiB", "default"
  };
  // The fastest algorithm for messages of `bytes`. `time` times a call of the given peer on all
  // members, and returns the same seconds on all. Every algorithm is tried once, and those that
  // came near the best twice more; the least time counts. Call it with growing sizes: an algorithm
  // that was far behind at a size of at least 1 MiB is not tried again.
  Choice choose(int64_t bytes, const std::function<double(Peer&)>& time);

 private:
  struct Algorithm {
    std::string name;
    int64_t bytes_min;  // of messages for which it differs from the others
    MpiPeer* peer;
    bool left_behind = false;
    double least_s = 0;
  };
  void add_all_of(const std::string& collective, bool with_counts);

  MpiPeer& mpi_;
  std::string unavailable_;
  std::vector<std::unique_ptr<MpiPeer>> peers_;
  std::vector<Algorithm> algorithms_;
};

}  // namespace horon::bench
