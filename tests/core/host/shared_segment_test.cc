#include "horon/core/host/shared_segment.h"

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <sys/time.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/host/named_file.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/open_descriptors.h"
#include "horon/tests/support/own_user_namespace.h"
#include "horon/tests/support/process_ranks.h"

namespace horon::core {
namespace {

// Otherwise the kernel could not take pages back.
TEST(SharedSegment, BeginsAtAPage) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto segment = SharedSegment::create(100'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.data()) % page, 0U);
  const auto again =
      SharedSegment::open(Reach::ByProcess, getpid(), segment.descriptor(), segment.generation());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(again.data()) % page, 0U);
}

TEST(SharedSegment, GoesWithItsName) {
  const auto has_name = [](uint64_t generation) {
    return std::filesystem::exists(path_of_named_file(generation));
  };
  uint64_t first = 0;
  uint64_t second = 0;
  {
    auto segment = SharedSegment::create(100'000, Reach::ByName);
    std::memset(segment.data(), 7, 100'000);
    first = segment.generation();
    EXPECT_TRUE(has_name(first));
    ASSERT_TRUE(segment.renew_generation());
    second = segment.generation();
    EXPECT_FALSE(has_name(first));
    EXPECT_TRUE(has_name(second));
    const SharedSegment moved = std::move(segment);
    const auto again = SharedSegment::open(Reach::ByName, getpid(), -1, moved.generation());
    EXPECT_TRUE(all_are(std::span<const std::byte>(again.data(), 100'000), std::byte{7}));
  }
  EXPECT_FALSE(has_name(first));
  EXPECT_FALSE(has_name(second));
}

// A forked worker of a data loader ends while its parent goes on.
TEST(SharedSegment, KeepsItsNameInAForkedChild) {
  auto segment = SharedSegment::create(100'000, Reach::ByName);
  EXPECT_EQ(end_of_child([&] { segment = SharedSegment(); }), 0);
  EXPECT_TRUE(std::filesystem::exists(path_of_named_file(segment.generation())));
}

TEST(SharedSegment, KeepsNoDescriptorsOfWhatItMapsOrWas) {
  const int before = test::open_descriptors();
  auto segment = SharedSegment::create(100'000);
  const auto opened =
      SharedSegment::open(Reach::ByProcess, getpid(), segment.descriptor(), segment.generation());
  EXPECT_EQ(test::open_descriptors(), before + 1);
  segment = SharedSegment();
  EXPECT_EQ(test::open_descriptors(), before);
}

TEST(SharedSegment, NamesTheFolderThatIsFull) {
  const std::vector<int> ends = run_with_small_folder(1, 1, [](int) {
    const std::string text =
        test::error_of([] { SharedSegment::create(size_t{4} << 20, Reach::ByName); });
    std::fprintf(stderr, "%s\n", text.c_str());
    // What is there serves the next one.
    const auto segment = SharedSegment::create(size_t{500} << 10, Reach::ByName);
    return text.starts_with("limit: ") &&
           text.ends_with(
               "4 MiB of shared memory in /dev/shm (HORON_SHARED_MEMORY=0 does without): "
               "No space left on device");
  });
  if (ends.empty()) GTEST_SKIP() << "no user namespaces are allowed here";
  EXPECT_EQ(ends, std::vector<int>{0});
}

// A profiler's timer interrupts every call that takes long.
TEST(SharedSegment, TimersDoNotKeepItFromItsMemory) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  sigaction(SIGALRM, &action, &before);
  const itimerval often = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &often, nullptr);
  const auto segment = SharedSegment::create(size_t{200} << 20);
  const itimerval never = {};
  setitimer(ITIMER_REAL, &never, nullptr);
  sigaction(SIGALRM, &before, nullptr);
  EXPECT_TRUE(all_are(std::span<const std::byte>(segment.data(), segment.bytes()), std::byte{0}));
}

}  // namespace
}  // namespace horon::core
