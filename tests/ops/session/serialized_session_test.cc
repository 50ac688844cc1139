// A program that lets one thread at a time call MPI has process sets, too.
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon {
namespace {

TEST(SerializedSession, MakesProcessSets) {
  int provided = -1;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), MPI_SUCCESS);
  if (provided > MPI_THREAD_SERIALIZED) GTEST_SKIP() << "this MPI grants more than was asked for";
  init_session();
  const ProcessSet last = add_process_set({size() - 1});
  const ProcessSet all = split_process_set(1);
  const ProcessSet alone = add_process_set_among({rank()}, 1);
  const ProcessSet both = add_process_set_among({0, 1}, 2);
  if (last.includes_me()) barrier(last);
  barrier(all);
  barrier(alone);
  barrier(both);
  remove_process_set(last);
  barrier();
  shutdown();
}

TEST(SerializedSession, EndsWithMpi) { EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS); }

}  // namespace
}  // namespace horon
