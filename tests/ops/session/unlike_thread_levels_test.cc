// A job of programs that have asked MPI for unlike thread levels: a simulation beside Python, say.
#include <algorithm>

#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"

// MPI's profiling interface: this one is called in place of the library's. Rank 1 has asked for
// less than the others.
extern "C" int MPI_Query_thread(int* level) {
  const int result = PMPI_Query_thread(level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank == 1) *level = std::min<int>(*level, MPI_THREAD_SERIALIZED);
  return result;
}

namespace horon {
namespace {

TEST(UnlikeThreadLevels, MakeProcessSetsTogether) {
  init_session();
  const ProcessSet all = split_process_set(1);
  barrier(all);
  if (rank() < 2) barrier(add_process_set_among({0, 1}, 2));
  remove_process_set(all);
  barrier();
  shutdown();
}

}  // namespace
}  // namespace horon
