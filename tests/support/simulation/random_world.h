// A whole job drawn from a seed: programs that differ by rank in every way that the protocol must
// tolerate, options, times, and sometimes a fault or two.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "horon/tests/support/simulation/simulated_cluster.h"
#include "horon/tests/support/simulation/timed_run.h"

namespace horon::simulation {

struct World {
  SimulatedCluster::Options cluster;
  TimedRun::Options timing;
  std::vector<Program> programs;
  bool corrupted = false;  // one message is damaged on its way
};

World random_world(uint64_t seed);
// The same for one process set of a larger job, without faults. `ranks`: its members, ascending.
World random_set(uint64_t seed, const std::vector<int>& ranks, uint32_t set);

struct Report {
  std::vector<std::string> wrong;   // empty if all is well
  std::string trace;                // if world.cluster.trace
  std::map<std::string, int> seen;  // how often each thing has occurred
};

// Runs a world and judges its end.
Report run_world(const World& world);

}  // namespace horon::simulation
