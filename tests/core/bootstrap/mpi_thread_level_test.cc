// A program that has initialised MPI for one thread is told what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/bootstrap/mpi_library.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon::core {
namespace {

TEST(MpiThreadLevel, RefusesMpiForOneThread) {
  int provided = -1;
  ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), MPI_SUCCESS);
  if (provided > MPI_THREAD_FUNNELED) GTEST_SKIP() << "this MPI grants more than was asked for";
  const MpiLibrary library;
  const std::optional<Error> fault = library.thread_fault();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->code(), ErrorCode::Config);
  EXPECT_THAT(fault->what(), testing::HasSubstr("MPI_THREAD_MULTIPLE"));
  EXPECT_THAT(fault->what(), testing::HasSubstr("or let Horon initialise MPI"));
  EXPECT_THAT(fault->what(),
              testing::HasSubstr("no call of MPI between horon::init() and horon::shutdown()"));
}

TEST(MpiThreadLevel, EndsWithMpi) { EXPECT_EQ(MPI_Finalize(), MPI_SUCCESS); }

}  // namespace
}  // namespace horon::core
