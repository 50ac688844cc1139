#include "horon/core/host/shared_segment.h"

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/time.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "horon/tests/support/all_are.h"

namespace horon::core {
namespace {

// Else the kernel takes no pages back.
TEST(SharedSegment, BeginsAtAPage) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto segment = SharedSegment::create(100'000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.data()) % page, 0U);
  const auto again = SharedSegment::open(getpid(), segment.descriptor(), segment.generation());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(again.data()) % page, 0U);
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
