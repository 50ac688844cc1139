// Tests of the main program of mpirun tests. Most are meant to fail or to end the program, so they
// are disabled; tests.cmake runs them one by one, and checks what they print and how they end.
#include "horon/tests/support/mpi_main.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>
#include <mpi.h>

namespace {

TEST(MpiMain, KnowsItsRank) {
  int value = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &value);
  EXPECT_EQ(test_rank(), value);
  MPI_Comm_size(MPI_COMM_WORLD, &value);
  EXPECT_EQ(test_size(), value);
  MPI_Query_thread(&value);
  EXPECT_EQ(value, MPI_THREAD_MULTIPLE);
}

TEST(MpiMain, DISABLED_FailsOnTheLastRank) {
  EXPECT_LT(test_rank() + 1, test_size()) << "as it should";
}

// mpirun does not hear that the ranks are done with it, as if it were too busy.
TEST(MpiMain, DISABLED_EndsUnheard) { std::_Exit(0); }

TEST(MpiMain, DISABLED_Exits) { std::exit(0); }

// The other ranks sleep too: waiting in MPI they would keep the cores of other tests busy.
TEST(MpiMain, DISABLED_HangsOnAllRanks) {
  for (;;) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

}  // namespace
