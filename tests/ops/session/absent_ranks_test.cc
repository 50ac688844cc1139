// Starts of a job in which not all ranks take part, and communicators that can't have a job.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"

namespace horon {
namespace {

using core::concat;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of_init(MPI_Comm communicator) {
  return error_of([&] { init_session({.mpi_comm = &communicator}); });
}

void expect_that_all_start() {
  EXPECT_FALSE(is_initialized());
  init_session();
  barrier();
  shutdown();
}

// Called on rank 0 of a program that goes on. When all others have given up, as each says by a
// message, makes the MPI call that they have left unfinished.
void come_to_what_others_left_behind() {
  char word = 0;
  for (int other = 1; other < test_size(); ++other) {
    MPI_Recv(&word, 1, MPI_CHAR, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Request left_behind = MPI_REQUEST_NULL;
  MPI_Ibarrier(MPI_COMM_WORLD, &left_behind);
  MPI_Wait(&left_behind, MPI_STATUS_IGNORE);
}

TEST(AbsentRanks, AreWaitedForWithAWarningAndALimit) {
  if (test_size() == 1) GTEST_SKIP() << "nobody is absent";
  char word = 0;
  if (test_rank() == 0) {
    come_to_what_others_left_behind();
  } else {
    testing::internal::CaptureStderr();
    const std::string error = error_of([] {
      init_session({.set = {{"HORON_STALL_WARN_S", "0.2"}, {"HORON_STALL_ABORT_S", "1"}}});
    });
    const std::string log = testing::internal::GetCapturedStderr();
    const std::string who = concat("horon::init() on rank ", test_rank(), " has waited ");
    EXPECT_THAT(error, AllOf(StartsWith(concat("stall: ", who)),
                             HasSubstr("(HORON_STALL_ABORT_S ended the wait)")));
    EXPECT_THAT(log,
                AllOf(HasSubstr("warning: "), HasSubstr(who), HasSubstr(" s for other ranks"),
                      HasSubstr(concat("all of its ", test_size(),
                                       " ranks must call init(); if only some of them train, give "
                                       "InitOptions::mpi_comm a communicator of those\n"))));
    MPI_Send(&word, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
  }
  expect_that_all_start();
}

// The call that rank 0 has left unfinished in MPI does not make the others believe that it has
// come.
TEST(AbsentRanks, ThatComeWhenOthersHaveGivenUpDoNotWaitInSilence) {
  if (test_size() == 1) GTEST_SKIP() << "nobody is late";
  const auto error_of_waiting = [] {
    return error_of([] { init_session({.set = {{"HORON_STALL_ABORT_S", "0.5"}}}); });
  };
  char word = 0;
  if (test_rank() == 0) {
    EXPECT_THAT(error_of_waiting(), StartsWith("stall: "));
    for (int other = 1; other < test_size(); ++other) {
      MPI_Send(&word, 1, MPI_CHAR, other, 0, MPI_COMM_WORLD);
    }
    come_to_what_others_left_behind();
  } else {
    MPI_Recv(&word, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    EXPECT_THAT(error_of_waiting(), StartsWith("stall: "));
    MPI_Send(&word, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
  }
  expect_that_all_start();
}

TEST(AbsentRanks, AreNoneWhereOnlyRanksOfTheCommunicatorCome) {
  const int color = test_rank() == test_size() - 1 ? MPI_UNDEFINED : 0;
  MPI_Comm trains = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, 0, &trains);
  if (trains == MPI_COMM_NULL) {
    EXPECT_THAT(error_of_init(trains),
                AllOf(StartsWith("invalid argument: InitOptions::mpi_comm is MPI_COMM_NULL"),
                      HasSubstr("MPI_UNDEFINED"), HasSubstr("must not call horon::init()")));
  } else {
    init_session({.mpi_comm = &trains});
    EXPECT_EQ(size(), test_size() - 1);
    shutdown();
    MPI_Comm_free(&trains);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  expect_that_all_start();
}

TEST(AbsentRanks, AnIntercommunicatorIsRefused) {
  if (test_size() == 1) GTEST_SKIP() << "it has two groups";
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm between = MPI_COMM_NULL;
  const int color = test_rank() == 0 ? 0 : 1;
  MPI_Comm_split(MPI_COMM_WORLD, color, 0, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - color, 0, &between);
  EXPECT_THAT(error_of_init(between),
              AllOf(StartsWith("invalid argument: InitOptions::mpi_comm is an intercommunicator"),
                    HasSubstr("MPI_Intercomm_merge()")));
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
  expect_that_all_start();
}

}  // namespace
}  // namespace horon
