#include "horon/core/bootstrap/topology.h"

#include <algorithm>
#include <map>

#include "horon/core/base/error.h"

namespace horon::core {

int Topology::host_count() const { return static_cast<int>(leaders().size()); }

std::vector<int> Topology::leaders() const {
  std::vector<int> lowest;  // [host], since hosts are numbered in the order of their lowest ranks
  for (int other = 0; other < static_cast<int>(host_of.size()); ++other) {
    if (host_of[static_cast<size_t>(other)] == static_cast<int>(lowest.size())) {
      lowest.push_back(other);
    }
  }
  return lowest;
}

Topology make_topology(int rank, std::span<const int> host_key_of) {
  const int size = static_cast<int>(host_key_of.size());
  HORON_CHECK(rank >= 0 && rank < size, "the rank is one of the job");
  Topology topology;
  topology.rank = rank;
  topology.size = size;
  std::map<int, int> host_numbers;         // [key]
  std::vector<std::vector<int>> ranks_of;  // [host]
  for (int other = 0; other < size; ++other) {
    const int key = host_key_of[static_cast<size_t>(other)];
    const auto [at, is_new] = host_numbers.emplace(key, static_cast<int>(ranks_of.size()));
    if (is_new) ranks_of.emplace_back();
    if (other == rank) {
      topology.local_rank = static_cast<int>(ranks_of[static_cast<size_t>(at->second)].size());
    }
    ranks_of[static_cast<size_t>(at->second)].push_back(other);
    topology.host_of.push_back(at->second);
  }
  const int host = topology.host_of[static_cast<size_t>(rank)];
  topology.local_ranks = ranks_of[static_cast<size_t>(host)];
  topology.local_size = static_cast<int>(topology.local_ranks.size());
  topology.cross_size = 0;
  for (int other = 0; other < static_cast<int>(ranks_of.size()); ++other) {
    const int others = static_cast<int>(ranks_of[static_cast<size_t>(other)].size());
    if (others <= topology.local_rank) continue;
    if (other < host) ++topology.cross_rank;
    ++topology.cross_size;
  }
  return topology;
}

Topology restrict_to_members(const Topology& topology, std::span<const int> members) {
  const auto me = std::find(members.begin(), members.end(), topology.rank);
  HORON_CHECK(me != members.end(), "this rank is a member");
  std::vector<int> hosts;
  for (const int member : members)
    hosts.push_back(topology.host_of.at(static_cast<size_t>(member)));
  return make_topology(static_cast<int>(me - members.begin()), hosts);
}

}  // namespace horon::core
