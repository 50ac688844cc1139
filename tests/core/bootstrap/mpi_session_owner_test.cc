// Horon begins and ends MPI itself here; that works once in a process, so this is one story in one
// test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_session.h"
#include "horon/tests/support/mpi_main.h"

bool test_main_starts_mpi() { return false; }

namespace horon::core {
namespace {

TEST(MpiSessionOwner, BeginsAndEndsMpiOnce) {
  int state = 1;
  MPI_Initialized(&state);
  ASSERT_EQ(state, 0);
  {
    const MpiSession session;
    EXPECT_TRUE(session.owns_mpi());
    MPI_Initialized(&state);
    EXPECT_EQ(state, 1);
    EXPECT_EQ(session.topology().rank, test_rank());
    EXPECT_EQ(session.topology().size, test_size());
    const MpiSession second;  // finds MPI running
    EXPECT_FALSE(second.owns_mpi());
    EXPECT_EQ(second.gather_text("x").size(), static_cast<size_t>(test_size()));
  }
  MPI_Finalized(&state);
  EXPECT_EQ(state, 1);
  try {
    const MpiSession again;
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    EXPECT_THAT(error.what(), testing::HasSubstr("can't be initialised twice"));
    EXPECT_THAT(error.what(), testing::HasSubstr("MPI_Init_thread"));
  }
}

}  // namespace
}  // namespace horon::core
