// A job of programs that have asked MPI for unlike thread levels: a simulation beside Python, say.
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon {
namespace {

TEST(UnlikeThreadLevels, MakeProcessSetsTogether) {
  const int wanted = test_rank() == 1 ? MPI_THREAD_SERIALIZED : MPI_THREAD_MULTIPLE;
  int provided = -1;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, wanted, &provided), MPI_SUCCESS);
  init_session();
  const ProcessSet all = split_process_set(1);
  barrier(all);
  if (rank() < 2) barrier(add_process_set_among({0, 1}, 2));
  remove_process_set(all);
  barrier();
  shutdown();
}

TEST(UnlikeThreadLevels, EndWithMpi) { EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS); }

}  // namespace
}  // namespace horon
