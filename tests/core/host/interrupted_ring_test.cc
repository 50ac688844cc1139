// A ring that is interrupted before each of its instructions. Not for ThreadSanitizer, which makes
// thousands of instructions of it.
#include <atomic>
#include <chrono>
#include <sys/syscall.h>

#include <gtest/gtest.h>

#include "horon/core/host/doorbell.h"
#include "horon/tests/core/host/woken.h"
#include "horon/tests/support/shared_with_children.h"
#include "horon/tests/support/stepped_process.h"

namespace horon::core {
namespace {

struct InterruptedRing {
  Doorbell bell;
  std::atomic<bool> begun{false};
  std::atomic<bool> over{false};
};

// The process that rings pauses within ring(), before each of its instructions in turn. The waiter
// has taken that ring and is about to sleep when the other goes on: it must hear the next ring.
TEST(Doorbell, LosesNoRingAfterOneThatWasInterrupted) {
  if (!can_be_stepped()) GTEST_SKIP() << "processes can't be stepped through here";
  bool over = false;
  for (int steps = 0; !over; ++steps) {
    const SharedWithChildren<InterruptedRing> shared;
    SteppedProcess ringer([&] {
      shared->begun = true;
      shared->bell.ring();
      shared->over = true;
      return 0;
    });
    while (!shared->begun) ringer.step();
    for (int i = 0; i < steps && !shared->over; ++i) ringer.step();
    over = shared->over;
    SteppedProcess waiter([&] {
      (void)shared->bell.take();
      return woken(shared->bell, {std::chrono::nanoseconds(0), {0}}) ? 0 : 1;
    });
    ASSERT_TRUE(waiter.go_to_call(SYS_futex)) << steps;
    EXPECT_EQ(ringer.finish(), 0);
    waiter.go_to_sleep();
    shared->bell.ring();
    ASSERT_EQ(waiter.finish(), 0) << "after " << steps << " instructions";
  }
}

}  // namespace
}  // namespace horon::core
