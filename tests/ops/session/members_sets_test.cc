// Process sets that their members make alone.
#include <algorithm>
#include <numeric>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/blocking_sum.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/mpi_main.h"

namespace horon {
namespace {

using core::concat;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// The sum of each member's rank + 1.
float sum_of(const ProcessSet& set) {
  return test::blocking_sum("sum", {static_cast<float>(rank() + 1)}, set.id()).front();
}

float expected_sum(const ProcessSet& set) {
  float sum = 0;
  for (const int member : set.ranks()) sum += static_cast<float>(member + 1);
  return sum;
}

bool is_on_one_host(const ProcessSet& set) {
  const std::vector<int>& host_of = ops::runtime().topology().host_of;
  const std::vector<int> ranks = set.ranks();
  return std::ranges::all_of(ranks, [&](int member) {
    return host_of[static_cast<size_t>(member)] == host_of[static_cast<size_t>(ranks.front())];
  });
}

class MembersSets : public testing::Test {
 protected:
  void SetUp() override { init_session(); }
  void TearDown() override { shutdown(); }
};

TEST_F(MembersSets, EveryPairAndAllOfThem) {
  std::vector<ProcessSet> sets;
  uint32_t number = 1000;
  for (int round = 0; round < 2; ++round) {
    for (int low = 0; low < size(); ++low) {
      for (int high = low + 1; high < size(); ++high, ++number) {
        if (rank() == low || rank() == high) {
          sets.push_back(add_process_set_among({high, low}, number));
        }
      }
    }
    std::vector<int> all(static_cast<size_t>(size()));
    std::iota(all.begin(), all.end(), 0);
    sets.push_back(add_process_set_among(all, 7 + static_cast<uint32_t>(round)));
    sets.push_back(add_process_set_among({rank()}, 70 + static_cast<uint32_t>(round)));
  }
  for (const ProcessSet& set : sets) {
    EXPECT_TRUE(set.includes_me());
    EXPECT_EQ(sum_of(set), expected_sum(set));
    barrier(set);
    const std::string chosen = ops::explain_selection(set).front();
    if (is_on_one_host(set)) {
      EXPECT_THAT(chosen, HasSubstr("shm_allreduce"));
    }
  }
  EXPECT_EQ(process_sets().size(), 1 + sets.size());
  const size_t kept = sets.size() / 2;  // the others end with the session
  for (size_t i = 0; i < kept; ++i) remove_process_set(sets[i]);
  for (size_t i = kept; i < sets.size(); ++i) EXPECT_EQ(sum_of(sets[i]), expected_sum(sets[i]));
  EXPECT_THAT(error_of([&] { (void)sum_of(sets.front()); }), HasSubstr("has been removed"));
}

// Meanwhile the rank that is not in the set comes to a collective of all ranks that began before.
TEST_F(MembersSets, HoldUpNobody) {
  const BarrierHandle before = barrier_async();
  if (rank() != 1) {
    const ProcessSet set = add_process_set_among({0, 2}, 1);
    EXPECT_EQ(sum_of(set), 4);
  }
  before.wait();
  const ProcessSet made_by_all = add_process_set({0, 1});
  barrier();
}

// The last call of the member that leaves completes for the others; a later call of theirs does
// not.
TEST_F(MembersSets, AMemberLeavesAndWaitsForNobody) {
  if (rank() == 2) return;
  const ProcessSet set = add_process_set_among({0, 1}, 4);
  const ProcessSet other = add_process_set_among({0, 1}, 5);
  if (rank() == 0) {
    EXPECT_EQ(sum_of(set), 3);
    leave_process_set(set);
    EXPECT_THAT(error_of([&] { (void)sum_of(set); }),
                HasSubstr("process set 4 (made by its members), or the set has been removed"));
    EXPECT_THAT(error_of([&] { leave_process_set(set); }), HasSubstr("has been removed before"));
    EXPECT_EQ(sum_of(other), 3);
  } else {
    EXPECT_EQ(sum_of(set), 3);
    EXPECT_EQ(sum_of(other), 3);
    EXPECT_THAT(error_of([&] { (void)sum_of(set); }), HasSubstr("rank 0"));
    leave_process_set(set);
  }
  EXPECT_EQ(process_sets().size(), 2);
  EXPECT_EQ(sum_of(add_process_set_among({0, 1}, 6)), 3);
  leave_process_set(other);
  EXPECT_THAT(error_of([] { leave_process_set({}); }),
              HasSubstr("the set of all ranks can't be removed"));
}

// The names of sets repeat after 1,024 sets; the numbers say which set is meant.
TEST_F(MembersSets, NumbersWithTheSameRemainderAreApart) {
  if (rank() == 2) return;
  for (const uint32_t number : {3U, 3U + 1024, 3U + 2048}) {
    const ProcessSet set = add_process_set_among({0, 1}, number);
    EXPECT_EQ(sum_of(set), 3);
  }
  const uint32_t mine = 4U + 1024U * static_cast<uint32_t>(rank() + 1);
  EXPECT_THAT(
      error_of([&] {
        (void)add_process_set_among({0, 1}, mine);
      }),
      AllOf(HasSubstr("process set 1028 of ranks"), HasSubstr("process set 2052 of ranks")));
}

TEST_F(MembersSets, WrongCallsAreRefusedAtOnce) {
  const auto error = [](std::vector<int> ranks, uint32_t number) {
    return error_of([&] { (void)add_process_set_among(ranks, number); });
  };
  EXPECT_THAT(error({}, 1), HasSubstr("the list of ranks is empty"));
  EXPECT_THAT(error({rank(), rank()}, 1), HasSubstr("a rank is listed twice"));
  EXPECT_THAT(error({rank(), size()}, 1), HasSubstr(concat("must be 0 to ", size() - 1)));
  EXPECT_THAT(error({(rank() + 1) % size()}, 1), HasSubstr("is not among these ranks"));
  EXPECT_THAT(error({rank()}, uint32_t{1} << 30), HasSubstr("less than 2^30"));
  (void)add_process_set_among({rank()}, 1);
  EXPECT_THAT(error({rank()}, 1), HasSubstr("has used the number before"));
}

TEST_F(MembersSets, RanksThatDifferAreAMismatch) {
  if (rank() == 2) return;
  std::vector<int> ranks = {0, 1};
  if (rank() == 1) ranks.push_back(2);
  EXPECT_THAT(error_of([&] { (void)add_process_set_among(ranks, 5); }),
              AllOf(StartsWith("mismatch: process set 5 (add_process_set_among()): its members "
                               "gave different lists of ranks, and all must give the same"),
                    HasSubstr("process set 5 of ranks 0 and 1 on rank 0"),
                    HasSubstr("process set 5 of ranks 0, 1 and 2 on rank 1")));
  EXPECT_EQ(sum_of(add_process_set_among({0, 1}, 6)), 3);
}

// Rank 1 agrees with rank 0, and would wait for it.
TEST_F(MembersSets, AMemberHearsThatTwoOthersDiffer) {
  const std::vector<int> ranks = rank() == 2 ? std::vector{0, 2} : std::vector{0, 1, 2};
  EXPECT_THAT(error_of([&] { (void)add_process_set_among(ranks, 5); }),
              AllOf(HasSubstr("its members gave different lists of ranks"),
                    HasSubstr("process set 5 of ranks 0 and 2 on rank 2")));
  EXPECT_EQ(sum_of(add_process_set_among({0, 1, 2}, 6)), 6);
}

// Makes the call at once, but on rank 1 only after rank 0 has reported that it waits for rank 1.
template <class Call>
void call_late_on_rank_1(const std::string& name, const Call& call) {
  char word = 0;
  if (rank() == 1) MPI_Recv(&word, 1, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  std::thread watcher;
  if (rank() == 0) {
    watcher = std::thread([&] {
      // The other ranks too may be late for a while.
      std::string report;
      const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
      while ((report.find("\"" + name) == std::string::npos ||
              report.find("rank 1") == std::string::npos) &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        report = ops::runtime().stall_report();
      }
      EXPECT_THAT(report, AllOf(HasSubstr("\"" + name), HasSubstr("rank 1")));
      MPI_Send(&word, 1, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
    });
  }
  call();
  if (watcher.joinable()) watcher.join();
}

TEST(MembersSetsStall, NamesTheMemberThatDoesNotCome) {
  init_session({.set = {{"HORON_STALL_WARN_S", "0.2"}}});
  ProcessSet set;
  call_late_on_rank_1("process set 3 (add_process_set_among())", [&] {
    set = add_process_set_among({0, 1, 2}, 3);
  });
  EXPECT_EQ(sum_of(set), 6);
  call_late_on_rank_1("process set 3 (remove_process_set())", [&] { remove_process_set(set); });
  shutdown();
}

}  // namespace
}  // namespace horon
