// A job with process sets, drawn from a seed: the set of all ranks, and one to three other sets,
// whose members overlap. Each set has controllers, programs and a log of its own. All sets share
// the processes: a fault strikes a rank in each of its sets.
#pragma once

#include <cstdint>
#include <vector>

#include "horon/tests/support/simulation/random_world.h"

namespace horon::simulation {

struct JobFault {
  Fault fault;     // its rank is a rank of the job
  size_t set = 0;  // Fail, DieSending: where it happens; the rank is a member
};

struct Job {
  int size = 0;
  std::vector<World> sets;  // the first has all ranks; controller.ranks says who is in which
  std::vector<JobFault> faults;
  // Whether an error that ends a rank in one of its sets ends it in the others, as in the runtime.
  // False to show that the checks notice.
  bool errors_spread = true;
  bool trace = false;
};

Job random_job(uint64_t seed);

// Runs a job and judges the end of each set, and of all of them together: a set without a part in
// what went wrong ends as its programs say, and a rank that ends in one set ends in all.
Report run_job(const Job& job);

}  // namespace horon::simulation
