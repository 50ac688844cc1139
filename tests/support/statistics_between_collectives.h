// The counts of a session while no collective is in flight.
#pragma once

#include <mpi.h>

#include "horon/core/base/statistics.h"
#include "horon/ops/session/session.h"

namespace horon::test {

// Collective over MPI_COMM_WORLD. Without the barriers a faster rank may have begun the next
// collective of Horon, whose messages this rank would count.
inline Statistics statistics_between_collectives() {
  MPI_Barrier(MPI_COMM_WORLD);
  const Statistics counted = statistics();
  MPI_Barrier(MPI_COMM_WORLD);
  return counted;
}

}  // namespace horon::test
