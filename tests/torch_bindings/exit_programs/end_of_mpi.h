#pragma once

#include <cstdio>
#include <cstdlib>

#include <mpi.h>

namespace horon::testing_support {

// From now on, the program fails if it exits while MPI runs; tests/support/mpirun_test has mpirun
// take no notice of that. Call it first in main(): handlers run in the reverse order of their
// registration, so those that end MPI have run.
inline void require_end_of_mpi() {
  std::atexit([] {
    int initialized = 0;
    int finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (initialized == 0 || finalized != 0) return;
    std::fputs("MPI has not been finalized\n", stderr);
    std::_Exit(98);
  });
}

}  // namespace horon::testing_support
