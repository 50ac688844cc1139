// Every order in which calls, messages and ends of collectives can follow each other in a small
// world.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "horon/tests/support/simulation/simulated_cluster.h"

namespace horon::simulation {

struct ExplorationReport {
  size_t states = 0;  // in which at least one rank has seen another sequence of events
  size_t ends = 0;    // of these, states in which nothing can happen any more
  bool complete = true;
  std::vector<std::string> wrong;  // at the first bad end; with its path
};

// Visits every reachable state once. Two orders that look the same to each single rank lead to the
// same state and are not told apart. Stops at states_max.
ExplorationReport explore(const SimulatedCluster::Options& options,
                          const std::vector<Program>& programs, size_t states_max);

}  // namespace horon::simulation
