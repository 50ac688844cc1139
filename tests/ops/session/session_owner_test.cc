// A job fails to start after Horon itself has initialised MPI. That is possible only once in a
// process, so this is one test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon {
namespace {

TEST(SessionOwner, AFailedStartEndsMpiOnAllRanks) {
  int me = -1;
  InitOptions options;
  options.set = {{"HORON_TIMELINE", "/no/such/folder/trace.json"}};
  try {
    init_session(options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("HORON_TIMELINE"));
    me = last_rank();
  }
  EXPECT_GE(me, 0);
  EXPECT_FALSE(is_initialized());
  int finalized = 0;
  MPI_Finalized(&finalized);
  EXPECT_EQ(finalized, 1);
  try {
    init_session();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("MPI_Init_thread"));
  }
}

}  // namespace
}  // namespace horon
