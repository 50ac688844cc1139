#include "horon/tests/support/mpi_main.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fnmatch.h>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/tests/support/test_arguments.h"

// A default that a test program can replace by its own definition.
__attribute__((weak)) bool test_main_starts_mpi() { return true; }

namespace {

// Set once MPI runs, and kept after it has ended.
std::atomic<int> known_rank{-1};
std::atomic<int> known_size{-1};

bool mpi_runs() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

void look_at_mpi() {
  if (known_rank >= 0 || !mpi_runs()) return;
  int value = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &value);
  known_size = value;
  MPI_Comm_rank(MPI_COMM_WORLD, &value);
  known_rank = value;
}

std::string rank_name() { return known_rank < 0 ? "?" : std::to_string(known_rank); }

// Prints failures only, in whole lines with the rank in front.
class FailurePrinter final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    look_at_mpi();
    const char* const file = result.file_name() == nullptr ? "?" : result.file_name();
    std::ostringstream text;
    text << file << ":" << result.line_number() << ": Failure\n" << result.message();
    std::istringstream lines(text.str());
    std::ostringstream out;
    for (std::string line; std::getline(lines, line);) {
      out << "[rank " << rank_name() << "] " << line << "\n";
    }
    std::fputs(out.str().c_str(), stderr);
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::fprintf(stderr, "[rank %s] [  FAILED  ] %s.%s\n", rank_name().c_str(),
                 test.test_suite_name(), test.name());
  }
};

// Ends a program that hangs, with the name of the test on this rank; mpirun then ends the others.
class Watchdog final : public testing::EmptyTestEventListener {
 public:
  // Without a limit it never ends the program.
  explicit Watchdog(std::optional<std::chrono::seconds> limit)
      : limit_(limit), thread_([this] { watch(); }) {}
  ~Watchdog() override {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void OnTestStart(const testing::TestInfo& test) override {
    set_test(std::string(test.test_suite_name()) + "." + test.name());
  }
  void OnTestEnd(const testing::TestInfo&) override { set_test("between two tests"); }

  void set_test(const std::string& name) {
    const std::lock_guard lock(mutex_);
    test_ = name;
    look_at_mpi();
  }

  void watch() {
    if (!limit_) return;
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, *limit_, [this] { return over_; })) return;
    std::fprintf(stderr, "[rank %s] watchdog: not done after %lld s, at: %s\n", rank_name().c_str(),
                 static_cast<long long>(limit_->count()), test_.c_str());
    std::fflush(nullptr);
    lock.unlock();
    // The first rank that aborts ends all; this gives the others time to print where they are, also
    // those that began later.
    std::this_thread::sleep_for(std::chrono::seconds(5));
    std::abort();
  }

  const std::optional<std::chrono::seconds> limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string test_ = "before the first test";
  bool over_ = false;
  std::thread thread_;  // the last member: it uses the others
};

std::optional<std::chrono::seconds> watchdog_limit() {
  const char* const limit = horon::testing_support::argument("--watchdog-s");
  if (limit == nullptr) return std::nullopt;
  return std::chrono::seconds(std::atoi(limit));
}

// As --gtest_filter: patterns with * and ?, separated by colons; patterns after a - exclude tests.
bool filter_takes(const std::string& filter, const std::string& test) {
  const auto any_matches = [&](const std::string& patterns) {
    std::istringstream list(patterns);
    for (std::string one; std::getline(list, one, ':');) {
      if (fnmatch(one.c_str(), test.c_str(), 0) == 0) return true;
    }
    return false;
  };
  const size_t minus = filter.find('-');
  const std::string taken = filter.substr(0, minus);
  if (!taken.empty() && !any_matches(taken)) return false;
  return minus == std::string::npos || !any_matches(filter.substr(minus + 1));
}

// Sets a filter that names each test in these files (a, b for "a,b": a.cc and b.cc), of those that
// --gtest_filter takes. Returns the files without any such test, as "a.cc, b.cc".
std::string take_tests_of_files(const std::string& list) {
  std::map<std::string, bool> has_tests;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) has_tests[name + ".cc"] = false;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  const std::string filter = GTEST_FLAG_GET(filter);
  std::string taken;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const testing::TestInfo& test = *suite.GetTestInfo(j);
      const auto file = has_tests.find(std::filesystem::path(test.file()).filename());
      const std::string name = std::string(suite.name()) + "." + test.name();
      if (file == has_tests.end() || !filter_takes(filter, name)) continue;
      file->second = true;
      taken += name + ":";
    }
  }
  GTEST_FLAG_SET(filter, taken);
  std::string without;
  for (const auto& [file, has] : has_tests) {
    if (!has) without += (without.empty() ? "" : ", ") + file;
  }
  return without;
}

// Rank 0 prints as usual, the others print failures only. Before MPI runs, no rank is known.
void set_printers(bool print_all) {
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (print_all) return;
  delete listeners.Release(listeners.default_result_printer());
  delete listeners.Release(listeners.default_xml_generator());
  listeners.Append(new FailurePrinter);
}

// A failure on one rank is a failure on all.
int agree(int failed) {
  if (!mpi_runs()) return failed;
  int any = 0;
  MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (any != 0 && failed == 0 && known_rank == 0) {
    std::fputs("[  FAILED  ] on another rank\n", stderr);
  }
  return any;
}

// A test that calls exit(0) would end its rank as if all tests had passed. (_exit() is not seen.)
bool all_tests_are_over = false;
void refuse_early_exit() {
  static const pid_t process = getpid();  // not a child that a test has forked
  std::atexit([] {
    if (all_tests_are_over || getpid() != process) return;
    std::fputs("exit() was called before the last test was over\n", stderr);
    std::_Exit(1);
  });
}

}  // namespace

int test_rank() {
  look_at_mpi();
  return known_rank < 0 ? 0 : known_rank.load();
}

int test_size() {
  look_at_mpi();
  return known_size < 0 ? 1 : known_size.load();
}

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* const files = horon::testing_support::argument("--file")) {
    const std::string without = take_tests_of_files(files);
    if (!without.empty()) {
      std::fprintf(stderr, "no tests of a file %s that --gtest_filter takes in this program\n",
                   without.c_str());
      return 2;
    }
  }
  refuse_early_exit();
  auto* const watchdog = new Watchdog(watchdog_limit());
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  listeners.Append(watchdog);
  const bool starts_mpi = test_main_starts_mpi();
  if (starts_mpi) {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    look_at_mpi();
  }
  set_printers(starts_mpi && known_rank == 0);
  const int failed = RUN_ALL_TESTS();
  all_tests_are_over = true;
  look_at_mpi();
  if (!starts_mpi && known_rank <= 0) {
    const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
    std::printf("%d tests ran, %d passed, %d skipped, %d failed\n", tests.test_to_run_count(),
                tests.successful_test_count(), tests.skipped_test_count(),
                tests.failed_test_count());
  }
  const int verdict = agree(failed);
  if (starts_mpi) MPI_Finalize();
  delete listeners.Release(watchdog);
  return verdict;
}
