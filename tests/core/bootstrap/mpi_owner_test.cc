// Horon itself initialises and finalises MPI. That is possible only once in a process, so this is
// one test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon::core {
namespace {

TEST(MpiOwner, BeginsAndEndsMpiOnce) {
  int state = 1;
  MPI_Initialized(&state);
  ASSERT_EQ(state, 0);
  {
    MpiLibrary library;
    EXPECT_TRUE(library.owns_mpi());
    MPI_Initialized(&state);
    EXPECT_EQ(state, 1);
    const MpiBootstrap bootstrap(library);
    EXPECT_EQ(bootstrap.topology().rank, test_rank());
    EXPECT_EQ(bootstrap.topology().size, test_size());
    const MpiLibrary second;  // finds MPI running
    EXPECT_FALSE(second.owns_mpi());
  }
  MPI_Finalized(&state);
  EXPECT_EQ(state, 1);
  try {
    const MpiLibrary again;
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    EXPECT_THAT(error.what(), testing::HasSubstr("can't be initialised twice"));
    EXPECT_THAT(error.what(), testing::HasSubstr("MPI_Init_thread"));
  }
}

}  // namespace
}  // namespace horon::core
