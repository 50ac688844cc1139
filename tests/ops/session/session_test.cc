// Start and end of jobs, in an MPI that the test owns: so a job may fail to start and be started
// again.
#include "horon/ops/session/session.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/tests/support/mpi_main.h"

namespace horon {
namespace {

using core::concat;
using testing::HasSubstr;
using testing::StartsWith;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return concat(to_string(error.code()), ": ", error.what());
  }
  return "no error";
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

TEST(SessionStart, ATimelineThatOneRankCanNotWriteIsAnErrorOfAll) {
  const int guilty = test_size() - 1;
  InitOptions options;
  if (test_rank() == guilty) options.set = {{"HORON_TIMELINE", "/no/such/folder/trace.json"}};
  const std::string expected = test_size() == 1 ? "" : concat(" (on rank ", guilty, ")");
  EXPECT_THAT(error_of([&] { init_session(options); }),
              AllOf(StartsWith("configuration: HORON_TIMELINE: can't write /no/such/folder/trace"),
                    testing::EndsWith(concat("No such file or directory", expected))));
  expect_that_a_job_starts();
}

TEST(SessionStart, AWrongProcessSetLeavesNoJobBehind) {
  EXPECT_THAT(error_of([] {
                init_session({.process_sets = {{0}, {0, 0}}});
              }),
              HasSubstr("add_process_set({0 and 0}): a rank is there twice"));
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

std::set<std::string> threads_of_this_process() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    threads.insert(entry.path());
  }
  return threads;
}

uint64_t blocked_signals_of(const std::string& thread) {
  std::ifstream status(thread + "/status");
  for (std::string word; status >> word;) {
    uint64_t mask = 0;
    if (word == "SigBlk:" && status >> std::hex >> mask) return mask;
  }
  return 0;
}

// A profiling timer or a handler of the program never interrupts the runtime thread.
TEST(Session, ItsThreadsTakeNoSignals) {
  const std::set<std::string> before = threads_of_this_process();
  init_session();
  int new_threads = 0;
  for (const std::string& thread : threads_of_this_process()) {
    if (before.contains(thread)) continue;
    ++new_threads;
    const uint64_t blocked = blocked_signals_of(thread);
    for (const int signal : {SIGINT, SIGTERM, SIGALRM, SIGPROF, SIGUSR1, SIGCHLD}) {
      EXPECT_NE(blocked >> (signal - 1) & 1U, 0U) << signal;
    }
    EXPECT_EQ(blocked >> (SIGSEGV - 1) & 1U, 0U);
  }
  EXPECT_GE(new_threads, 1);
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGTERM), 0);
  shutdown();
}

}  // namespace
}  // namespace horon
