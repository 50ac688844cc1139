// Judges the end of a simulated job.
#pragma once

#include <string>
#include <vector>

#include "horon/tests/support/simulation/expected_outcomes.h"
#include "horon/tests/support/simulation/simulated_cluster.h"

namespace horon::simulation {

// A job without lasting faults, run until nothing happens any more: every call has the expected
// outcome, every rank has applied the same log, what is open is known to the coordinator and told
// in the stall report, everything else is at rest. Returns what is wrong; empty if nothing is.
std::vector<std::string> check_outcomes(const SimulatedCluster& cluster,
                                        const Expectation& expected);

// Why a job had to end.
struct CauseOfEnd {
  int culprit = 0;
  ErrorCode code = ErrorCode::Internal;
  std::string text;  // a part of what the error says
  // The culprit may have died while it sent the reason. Then a rank that waits for nothing may not
  // know it until it needs the other ranks again.
  bool dies_telling = false;
};

// A job in which ranks died, stood still for too long or failed: the logs are prefixes of one
// another, and either nobody needed those ranks or every other rank ended with one of the causes.
// If there is one cause, all ranks tell it in the same words.
std::vector<std::string> check_common_end(const SimulatedCluster& cluster,
                                          const std::vector<CauseOfEnd>& causes);

// Counts what became of the calls, batches and frozen entries of a job.
void count_outcomes(const SimulatedCluster& cluster, std::map<std::string, int>& seen);

}  // namespace horon::simulation
