// Start and end of jobs, in an MPI that the test owns: so a job may fail to start and be started
// again.
#include "horon/ops/session/session.h"

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/ops/session/running_job.h"
#include "horon/tests/ops/session/blocking_sum.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/process_ranks.h"

namespace horon {
namespace {

using core::concat;
using test::error_of;
using testing::HasSubstr;
using testing::StartsWith;

// One value of each rank, summed.
void sum_of_ones(const std::string& name) {
  EXPECT_EQ(test::blocking_sum(name, {1}).front(), static_cast<float>(test_size()));
}

// After a start that failed everywhere, the job starts anew and works.
void expect_that_a_job_starts() {
  EXPECT_FALSE(is_initialized());
  init_session();
  barrier();
  EXPECT_EQ(process_sets().size(), 1U);
  const ProcessSet all = split_process_set(7);
  EXPECT_EQ(all.size(), test_size());
  barrier(all);
  shutdown();
}

// Ranks of one host read the same clock.
TEST(SessionStart, ABarrierEndsWhenTheLastRankHasCome) {
  using Clock = std::chrono::steady_clock;
  init_session();
  for (int round = 0; round < 30; ++round) {
    const bool late = round % test_size() == test_rank();
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(round % 3));
    int64_t came = Clock::now().time_since_epoch().count();
    barrier();
    const int64_t went = Clock::now().time_since_epoch().count();
    MPI_Allreduce(MPI_IN_PLACE, &came, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    EXPECT_GE(went, came) << "round " << round;
  }
  shutdown();
}

TEST(SessionStart, ATimelineThatOneRankCanNotWriteIsAnErrorOfAll) {
  const int guilty = test_size() - 1;
  InitOptions options;
  if (test_rank() == guilty) options.set = {{"HORON_TIMELINE", "/no/such/folder/trace.json"}};
  const std::string expected = test_size() == 1 ? "" : concat(" (on rank ", guilty, ")");
  EXPECT_THAT(error_of([&] { init_session(options); }),
              AllOf(StartsWith("configuration: HORON_TIMELINE or start_timeline(): can't write "
                               "/no/such/folder/trace"),
                    testing::EndsWith(concat("No such file or directory", expected))));
  expect_that_a_job_starts();
}

TEST(SessionTimeline, BeginsAndEndsWhileTheJobRuns) {
  EXPECT_THAT(error_of([] { start_timeline("x"); }), StartsWith("not initialized"));
  const std::string path = testing::TempDir() + concat("horon_session_", getpid(), "_{rank}.json");
  const std::string own =
      testing::TempDir() + concat("horon_session_", getpid(), "_", test_rank(), ".json");
  init_session();
  stop_timeline();  // there is none
  const auto sum_often = [](const std::string& name) {
    for (int round = 0; round < 20; ++round) sum_of_ones(name);  // frozen in the end
  };
  sum_often("before");
  start_timeline(path);
  sum_often("during");
  barrier();  // what is recorded of a collective may come a little after its wait
  stop_timeline();
  sum_often("after");
  const std::string missing = "/no/such/folder/t";
  EXPECT_THAT(error_of([&] { start_timeline(missing); }),
              HasSubstr("start_timeline(): can't write /no/such/folder/t"));
  const auto trace = [&] {
    std::ifstream file(own);
    return std::string{std::istreambuf_iterator<char>(file), {}};
  };
  const std::string constant = "\"limit of scratch bytes\"";
  EXPECT_THAT(trace(), AllOf(HasSubstr("\"during\""), HasSubstr(constant),
                             Not(HasSubstr("\"before\"")), Not(HasSubstr("\"after\""))));
  start_timeline(path);
  sum_often("again");
  barrier();
  stop_timeline();
  EXPECT_THAT(trace(),
              AllOf(HasSubstr("\"again\""), HasSubstr(constant), Not(HasSubstr("\"during\""))));
  start_timeline(path);
  start_timeline(path);  // with none between them: whole as well
  sum_often("replaced");
  barrier();
  stop_timeline();
  EXPECT_THAT(trace(), AllOf(HasSubstr("\"replaced\""), HasSubstr(constant)));
  shutdown();
  std::remove(own.c_str());
}

TEST(SessionStart, AWrongProcessSetLeavesNoJobBehind) {
  EXPECT_THAT(error_of([] {
                init_session({.process_sets = {{0}, {0, 0}}});
              }),
              HasSubstr("add_process_set({0 and 0}): a rank is listed twice"));
  expect_that_a_job_starts();
}

TEST(SessionStart, ProcessSetsMustBeTheSameOnAllRanks) {
  if (test_size() == 1) GTEST_SKIP() << "needs a second rank";
  InitOptions options;
  options.process_sets = {{0}};
  if (test_rank() == 1) options.process_sets.push_back({1});
  EXPECT_EQ(error_of([&] { init_session(options); }),
            "configuration: InitOptions::process_sets differs between ranks: rank 0 has '', rank 1 "
            "has '{1}'");
  expect_that_a_job_starts();
}

// If each set had names of its own, the ranks would wait for each other for ever.
TEST(Session, RanksThatRemoveDifferentSetsAreTold) {
  init_session({.set = {{"HORON_STALL_ABORT_S", "60"}}});
  std::vector<ProcessSet> sets = {add_process_set({0}), add_process_set({0})};
  const bool last = test_rank() == test_size() - 1;
  if (test_size() > 1) {
    const std::string error = error_of([&] { remove_process_set(sets[last ? 1 : 0]); });
    EXPECT_THAT(error, AllOf(StartsWith("mismatch"), HasSubstr("process set 1 on rank"),
                             HasSubstr(concat("process set 2 on rank ", test_size() - 1))));
  }
  remove_process_set(sets[0]);
  remove_process_set(sets[1]);
  shutdown();
}

// In another session some ranks may have made more calls than others.
TEST(Session, CallsAreCountedAnewInEachSession) {
  for (int session = 0; session < 2; ++session) {
    init_session();
    for (uint64_t call = 0; call < 3; ++call) EXPECT_EQ(ops::call_counts().next("x", 0), call);
    EXPECT_EQ(ops::call_counts().next("y", 0), 0U);
    EXPECT_EQ(ops::call_counts().next("x", 1), 0U);
    for (uint64_t call = 0; call <= ops::CallCounts::kNumbers; ++call) {
      EXPECT_EQ(ops::call_counts().next("z", 0), call % ops::CallCounts::kNumbers);
    }
    EXPECT_EQ(ops::call_counts().next_object("x", 0), 0U);
    (void)join();
    EXPECT_EQ(ops::call_counts().next("x", 0), 0U);
    EXPECT_EQ(ops::call_counts().next("x", 1), 1U);
    EXPECT_EQ(ops::call_counts().next_object("x", 0), 1U) << "the first may still be in use";
    for (uint64_t object = 0; object < 3; ++object) {
      EXPECT_EQ(ops::call_counts().next_called_object("c", 0), object);
      if (object == 1) ops::call_counts().keep_objects("c", 0);
    }
    (void)join();
    EXPECT_EQ(ops::call_counts().next_called_object("c", 0), 2U) << "no rank but this may have it";
    shutdown();
  }
}

// As a signal handler does in Python.
TEST(Session, NothingIsCountedUntilAnInterruptedJoinIsCalledAgain) {
  if (test_size() == 1) GTEST_SKIP() << "needs a second rank";
  init_session();
  ops::CallCounts& counts = ops::call_counts();
  (void)counts.next("x", 0);
  if (test_rank() == 0) {
    core::set_wait_check([] { throw Error(ErrorCode::Timeout, "interrupted"); });
    EXPECT_THAT(error_of([] { (void)join(); }), HasSubstr("interrupted"));
    core::set_wait_check(nullptr);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (test_rank() == 0) {
    const std::string again = "call join() again";
    EXPECT_THAT(error_of([&] { (void)counts.next("x", 0); }), HasSubstr(again));
    EXPECT_THAT(error_of([&] { (void)counts.next_object("x", 0); }), HasSubstr(again));
    EXPECT_THAT(error_of([&] { (void)counts.next_called_object("x", 0); }), HasSubstr(again));
    EXPECT_THAT(error_of([&] { (void)counts.times_forgotten(0); }), HasSubstr(again));
    EXPECT_EQ(counts.next("x", 1), 0U) << "in another process set";
  }
  EXPECT_NE(join(), 0);
  EXPECT_EQ(counts.next("x", 0), 0U);
  EXPECT_EQ(counts.times_forgotten(0), 1U);
  shutdown();
}

TEST(SessionStart, TheOrderOfRanksInAProcessSetMeansNothing) {
  if (test_size() == 1) GTEST_SKIP() << "needs a second rank";
  InitOptions options;
  options.process_sets = {{0, 1}};
  if (test_rank() == 1) options.process_sets = {{1, 0}};
  init_session(options);
  EXPECT_EQ(process_sets().at(1).ranks(), (std::vector<int>{0, 1}));
  shutdown();
}

// A program may start the job in several places.
TEST(Session, ASecondStartChangesNothing) {
  init_session();
  const uint32_t number = ops::session_number();
  init_session();
  EXPECT_EQ(ops::session_number(), number);
  barrier();
  shutdown();
  EXPECT_FALSE(is_initialized());
}

// A worker of a data loader is such a child.
TEST(Session, AForkedChildEndsNothing) {
  init_session();
  EXPECT_EQ(core::end_of_child([] { shutdown(); }), 0);
  barrier();
  shutdown();
}

TEST(SessionStart, HeadersOfAnotherVersionAreRefused) {
  EXPECT_THAT(error_of([] { init_session({}, "0.0.1"); }),
              HasSubstr("compiled with the headers of Horon 0.0.1"));
  expect_that_a_job_starts();
}

// Without limits there are no Pings, and nothing thaws, however late a rank is.
TEST(Session, CountsWhatItsCollectivesCost) {
  EXPECT_THAT(error_of([] { (void)statistics(); }), StartsWith("not initialized"));
  for (int session = 0; session < 2; ++session) {
    init_session({.set = {{"HORON_DEAD_AFTER_S", "0"}, {"HORON_STALL_WARN_S", "0"}}});
    for (int i = 0; i < 10; ++i) barrier();
    const Statistics before = statistics();
    EXPECT_GE(before.negotiated_starts, 3U);
    EXPECT_EQ(before.control_messages_sent > 0, test_size() > 1);
    EXPECT_EQ(before.control_messages_received > 0, test_size() > 1);
    for (int i = 0; i < 100; ++i) barrier();
    const Statistics after = statistics();
    barrier();                            // a rank that shuts down sends messages
    const bool frozen = test_size() > 1;  // one rank alone has no gate
    EXPECT_EQ(after.frozen_starts, before.frozen_starts + (frozen ? 100 : 0));
    EXPECT_EQ(after.negotiated_starts, before.negotiated_starts + (frozen ? 0 : 100));
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    EXPECT_EQ(after.control_messages_received, before.control_messages_received);
    EXPECT_EQ(after.collectives_in_flight, 0U);
    EXPECT_EQ(after.bytes_in_flight, 0U);
    shutdown();
  }
}

TEST(Session, KnowsWhetherItsHostsAreAlike) {
  init_session();
  EXPECT_TRUE(is_homogeneous());
  shutdown();
  init_session({.set = {{"HORON_HOST_ID", std::to_string(test_rank())}}});
  EXPECT_TRUE(is_homogeneous());
  EXPECT_EQ(cross_size(), test_size());
  shutdown();
  if (test_size() != 3) GTEST_SKIP() << "needs three ranks";
  init_session({.set = {{"HORON_HOST_ID", test_rank() < 2 ? "first" : "second"}}});
  EXPECT_FALSE(is_homogeneous());
  EXPECT_EQ(local_size(), test_rank() < 2 ? 2 : 1);
  shutdown();
}

// One copy of the gradients, scratch that fits what is asked for, and its limit.
TEST(SessionStatistics, SayWhatMemoryTheJobHolds) {
  constexpr size_t kib = 1 << 10, mib = 1 << 20;
  init_session();
  {
    const auto bucket = ops::allocate_host(3 * mib);
    EXPECT_EQ(statistics().bucket_bytes, 3 * mib);
    EXPECT_EQ(statistics().scratch_bytes, 0U);
    // A group of two tensors, which is packed.
    const auto values = std::make_shared<std::vector<float>>(2, 1.0F);
    core::EntrySpec spec;
    spec.parts = {{"a", {1}}, {"b", {1}}};
    core::Submission group;
    group.name = "a tiny group";
    group.spec = std::make_shared<const core::EntrySpec>(spec);
    for (float& value : *values) {
      auto* const data = reinterpret_cast<std::byte*>(&value);
      group.memory.push_back({data, data, 1});
    }
    group.keep_alive = values;
    (void)ops::runtime().run(std::move(group))->get();
    EXPECT_EQ(values->back(), static_cast<float>(test_size()));
    const Statistics now = statistics();
    EXPECT_GT(now.scratch_bytes, 0U);
    EXPECT_LE(now.scratch_bytes_peak, 128 * kib);
    EXPECT_EQ(now.scratch_bytes_limit, 128 * mib);
  }
  EXPECT_EQ(statistics().bucket_bytes, 0U);
  shutdown();
}

}  // namespace
}  // namespace horon
