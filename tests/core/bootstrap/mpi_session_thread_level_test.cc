// A program that has initialised MPI for one thread is told what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_session.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon::core {
namespace {

TEST(MpiSessionThreadLevel, RefusesMpiForOneThread) {
  int provided = -1;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), MPI_SUCCESS);
  if (provided > MPI_THREAD_FUNNELED) GTEST_SKIP() << "this MPI grants more than was asked for";
  try {
    const MpiSession session;
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    EXPECT_THAT(error.what(), testing::HasSubstr("MPI_THREAD_MULTIPLE"));
    EXPECT_THAT(error.what(), testing::HasSubstr("or let Horon initialise MPI"));
  }
}

TEST(MpiSessionThreadLevel, EndsWithMpi) { EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS); }

}  // namespace
}  // namespace horon::core
