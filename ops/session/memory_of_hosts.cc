#include "horon/ops/session/memory_of_hosts.h"

#include <vector>

#include "horon/core/base/log.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/host/local_group.h"

namespace horon::ops {
namespace {

using core::concat;

// "host node7 (ranks 2 and 3): local rank 1: memfd_create: ...; host ...". `reasons`, by rank: on
// the first rank of each host without shared memory, its name and the reason; else empty.
std::string list_hosts(const core::Topology& topology, const std::vector<std::string>& reasons) {
  constexpr int kShown = 8;
  std::string list;
  int hosts = 0;
  for (size_t leader = 0; leader < reasons.size(); ++leader) {
    if (reasons[leader].empty() || ++hosts > kShown) continue;
    std::vector<int> ranks;
    for (int rank = 0; rank < topology.size; ++rank) {
      if (topology.host_of[static_cast<size_t>(rank)] == topology.host_of[leader]) {
        ranks.push_back(rank);
      }
    }
    const size_t end_of_name = reasons[leader].find('\n');
    list += concat(list.empty() ? "" : "; ", "host ", reasons[leader].substr(0, end_of_name), " (",
                   core::name_ranks(ranks), "): ", reasons[leader].substr(end_of_name + 1));
  }
  if (hosts > kShown) list += concat("; ... (", hosts, " hosts in all)");
  return list;
}

}  // namespace

std::string memory_text(const Communicator& world) {
  const core::LocalGroup& group = world.local_group();
  const core::Topology& topology = world.topology();
  const bool one_rank_each = topology.size == topology.host_count();
  if (!group.available() && (one_rank_each || !world.all_reach_their_hosts())) {
    return concat("MPI (no shared memory: ", group.unavailable_reason(), ")");
  }
  if (!world.all_reach_their_hosts()) return "MPI (another host has no shared memory)";
  return group.reach() == core::Reach::ByName ? "shared memory (files in /dev/shm) and MPI"
                                              : "shared memory and MPI";
}

// One host without shared memory costs all ranks theirs, and only its own ranks know why. A host
// with a single rank needs none.
void warn_of_missing_memory(const core::Bootstrap& bootstrap, const std::string& host,
                            const Communicator& world) {
  const core::Topology& topology = bootstrap.topology();
  if (world.all_reach_their_hosts()) return;  // the same on all ranks
  const core::LocalGroup& group = world.local_group();
  std::string mine;
  if (topology.local_rank == 0 && topology.local_size > 1 && !group.available()) {
    mine = concat(host, "\n", group.unavailable_reason());
  }
  const auto reasons = bootstrap.allgather(core::Bootstrap::Among::Job, mine);
  if (topology.rank != 0) return;
  core::log(
      core::LogLevel::Warn,
      concat("no shared memory on ", list_hosts(topology, reasons),
             ". So collectives of all ranks go through MPI, which is slower. For shared memory, "
             "run all ranks of a host as one user and in one PID namespace, and either let them "
             "look into each other's processes (ptrace) or give them the same /dev/shm, with "
             "memory left; HORON_SHARED_MEMORY=0 chooses MPI and ends this warning"));
}

}  // namespace horon::ops
