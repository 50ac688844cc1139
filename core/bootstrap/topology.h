// Where this process stands among the others. Plain data.
#pragma once

#include <span>
#include <vector>

namespace horon::core {

struct Topology {
  int rank = 0;        // 0 .. size-1
  int size = 1;        // processes in the job
  int local_rank = 0;  // among the processes of this host
  int local_size = 1;
  int cross_rank = 0;            // index of this host among the hosts that have this local_rank
  int cross_size = 1;            // how many hosts have this local_rank
  std::vector<int> host_of;      // [rank] -> host number, in the order of each host's lowest rank
  std::vector<int> local_ranks;  // global ranks of the processes of this host, ascending

  bool one_host() const { return local_size == size; }
  int host_count() const;
  // The lowest rank of each host, ascending.
  std::vector<int> leaders() const;
};

// Made from one number for each rank, equal for ranks of the same host and different otherwise.
Topology make_topology(int rank, std::span<const int> host_key_of);

// What some ranks (`members`, ascending; topology.rank is one of them) are to each other. Ranks in
// the answer are indices into `members`.
Topology restrict_to_members(const Topology& topology, std::span<const int> members);

}  // namespace horon::core
