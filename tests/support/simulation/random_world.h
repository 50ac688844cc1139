// A whole job drawn from a seed: programs that differ by rank in every way that the protocol must
// stand, options, times and now and then a fault.
#pragma once

#include <cstdint>
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

// Runs the world of this seed and judges its end; empty if all is well. With a trace, if one is
// asked for.
std::vector<std::string> run_world(uint64_t seed, std::string* trace = nullptr);

}  // namespace horon::simulation
