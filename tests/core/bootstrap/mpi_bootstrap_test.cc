#include "horon/core/bootstrap/mpi_bootstrap.h"

#include <chrono>
#include <numeric>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/core/bootstrap/mpi_error.h"
#include "horon/tests/core/bootstrap/bootstrap_contract.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"

namespace horon::core {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// The contract of all bootstraps, with the ranks on one host and on two.
TEST(MpiBootstrap, KeepsTheContract) {
  MpiLibrary library;
  check_bootstrap(MpiBootstrap(library));
  check_bootstrap(MpiBootstrap(library, nullptr, test_rank() < 2 ? "first" : "second"));
}

TEST(MpiBootstrap, LeavesMpiToTheCallerWhoBeganIt) {
  for (int round = 0; round < 3; ++round) {
    MpiLibrary library;
    const MpiBootstrap bootstrap(library);
    EXPECT_FALSE(library.owns_mpi());
    EXPECT_FALSE(library.thread_fault());
    EXPECT_TRUE(library.allows_threads_at_once());
  }
  int finalized = 1;
  MPI_Finalized(&finalized);
  EXPECT_EQ(finalized, 0);
}

TEST(MpiBootstrap, KnowsWhereItStands) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  const Topology& topology = bootstrap.topology();
  EXPECT_EQ(topology.rank, test_rank());
  EXPECT_EQ(topology.size, test_size());
  EXPECT_EQ(topology.local_rank, test_rank());  // mpirun_test starts all ranks on this machine
  EXPECT_EQ(topology.local_size, test_size());
  EXPECT_EQ(topology.cross_rank, 0);
  EXPECT_EQ(topology.cross_size, 1);
  EXPECT_TRUE(topology.one_host());
  EXPECT_EQ(topology.host_of, std::vector<int>(static_cast<size_t>(test_size()), 0));
  std::vector<int> all(static_cast<size_t>(test_size()));
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(topology.local_ranks, all);
}

// Ranks that could share memory are on two hosts if their host ids say so.
TEST(MpiBootstrap, HostIdsDivideAHost) {
  MpiLibrary library;
  const bool odd = test_rank() % 2 == 1;
  const MpiBootstrap bootstrap(library, nullptr, odd ? "odd" : "");
  std::vector<int> hosts;
  std::vector<int> like_me;
  for (int rank = 0; rank < test_size(); ++rank) {
    hosts.push_back(rank % 2);
    if (rank % 2 == test_rank() % 2) like_me.push_back(rank);
  }
  EXPECT_EQ(bootstrap.topology().host_of, hosts);
  EXPECT_EQ(bootstrap.topology().local_ranks, like_me);
  EXPECT_EQ(allgather_values(bootstrap, Bootstrap::Among::Host, test_rank()), like_me);
}

TEST(MpiBootstrap, TakesACommunicatorOfTheCaller) {
  // Half of the ranks, in reverse order.
  MPI_Comm half = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(MPI_COMM_WORLD, test_rank() % 2, -test_rank(), &half), "split");
  int rank = -1;
  MPI_Comm_rank(half, &rank);
  {
    MpiLibrary library;
    const MpiBootstrap bootstrap(library, &half);
    EXPECT_EQ(bootstrap.topology().rank, rank);
    EXPECT_EQ(bootstrap.topology().size, (test_size() + 1 - test_rank() % 2) / 2);
    EXPECT_EQ(bootstrap.topology().local_rank, rank);
    MPI_Comm_free(&half);  // the bootstrap has its own
    require_same(bootstrap, "nothing", "");
  }
}

// If a rank stands still in the start of a job, in a driver or on a file system, the others report
// that they wait for it.
TEST(MpiBootstrap, RanksThatWaitForOneInTheStartSaySo) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library, nullptr, "", {.warn_s = 0.1});
  const bool stands_still = test_rank() == test_size() - 1;
  testing::internal::CaptureStderr();
  if (stands_still) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  require_same(bootstrap, "nothing", "");
  const std::string log = testing::internal::GetCapturedStderr();
  if (stands_still) {
    EXPECT_EQ(log, "");
  } else {
    const std::string who = concat("horon::init() on rank ", test_rank(), " has waited ");
    EXPECT_THAT(log, AllOf(HasSubstr("warning: "), HasSubstr(who),
                           HasSubstr(" s for a rank that has called init() too and is stuck")));
  }
}

// One of them comes later, when the others have given up.
TEST(MpiBootstrap, RanksThatWaitInTheStartGiveUpInTheEnd) {
  if (test_size() == 1) GTEST_SKIP() << "nobody is late";
  MpiLibrary library;
  const MpiBootstrap bootstrap(library, nullptr, "", {.abort_s = 2});
  const int late = test_size() - 1;
  const bool is_late = test_rank() == late;
  char word = 0;
  const auto hear_from = [&word](int rank) {
    MPI_Recv(&word, 1, MPI_CHAR, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  };
  const auto tell = [&word](int rank) { MPI_Send(&word, 1, MPI_CHAR, rank, 0, MPI_COMM_WORLD); };
  for (int other = 0; is_late && other < late; ++other) hear_from(other);
  EXPECT_THAT(error_of([&] { require_same(bootstrap, "nothing", ""); }),
              AllOf(HasSubstr("stall: "), HasSubstr("is stuck in it"),
                    HasSubstr("(HORON_STALL_ABORT_S ended the wait)")));
  EXPECT_TRUE(library.abandoned());
  // It does not wait again, and what it says is what came first.
  EXPECT_THAT(error_of([&] { require_same(bootstrap, "nothing", ""); }),
              HasSubstr("this rank has given up waiting for others in horon::init()"));
  EXPECT_THAT(error_of([&] { agree(bootstrap, Error(ErrorCode::Config, "its own")); }),
              HasSubstr("its own"));
  for (int other = 0; is_late && other < late; ++other) tell(other);
  if (is_late) return;
  tell(late);
  hear_from(late);
  MPI_Request left_behind = MPI_REQUEST_NULL;  // meets the second one of the late rank
  MPI_Ibarrier(bootstrap.communicator(), &left_behind);
  MPI_Wait(&left_behind, MPI_STATUS_IGNORE);
}

TEST(MpiLibrary, HasAVersion) { EXPECT_THAT(MpiLibrary::version(), HasSubstr("MPI")); }

TEST(MpiError, CarriesMpisOwnWords) {
  MpiLibrary library;
  const MpiBootstrap bootstrap(library);
  check_mpi(MPI_SUCCESS, "MPI_Send");
  const int value = 0;
  const int code = MPI_Send(&value, 1, MPI_INT, test_size(), 0, bootstrap.communicator());
  ASSERT_NE(code, MPI_SUCCESS);  // returned, not fatal
  try {
    check_mpi(code, "MPI_Send");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::OperationFailed);
    EXPECT_THAT(error.what(), HasSubstr("MPI_Send: "));
    EXPECT_THAT(error.what(), HasSubstr("rank"));
  }
}

TEST(MpiBootstrap, LeavesCommunicatorsOfABrokenJobAlone) {
  MPI_Comm kept = MPI_COMM_NULL;
  {
    MpiLibrary library;
    const MpiBootstrap bootstrap(library);
    kept = bootstrap.communicator();
    library.abandon();
    EXPECT_TRUE(library.abandoned());
    EXPECT_FALSE(library.usable());
  }
  int size = 0;
  EXPECT_EQ(MPI_Comm_size(kept, &size), MPI_SUCCESS);
  EXPECT_EQ(size, test_size());
  MPI_Comm_free(&kept);
}

}  // namespace
}  // namespace horon::core
