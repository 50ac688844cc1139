// For programs of mpi_main.cc whose tests are run without mpirun.
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }
