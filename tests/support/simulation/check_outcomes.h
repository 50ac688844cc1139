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

// A job in which `culprit` died, stood still for too long or failed: the logs are prefixes of one
// another, and either nobody needed that rank or every other rank ended with the same error. The
// error's text holds `cause`.
std::vector<std::string> check_common_end(const SimulatedCluster& cluster, int culprit,
                                          ErrorCode code, const std::string& cause);

}  // namespace horon::simulation
