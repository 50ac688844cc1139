#include "horon/core/host/doorbell.h"

#include <algorithm>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <thread>
#include <time.h>
#include <unistd.h>

#include "horon/core/base/cpu_relax.h"
#include "horon/core/base/futex.h"

namespace horon::core {

namespace {

using Clock = std::chrono::steady_clock;

// The clock is read once in so many turns: a turn is short, a look at the clock is not.
constexpr int kSpinsPerLook = 32;
constexpr std::chrono::nanoseconds kTimeoutMax = std::chrono::hours(1);

}  // namespace

void Doorbell::ring() noexcept {
  // Both sides write their own word, then read the other's: in sequentially consistent order at
  // least one of them sees the other, so a ring between the last look and the sleep is never lost.
  rung_.exchange(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) == 0) return;
  if (sleeping_.exchange(0, std::memory_order_seq_cst) == 0) return;  // someone else wakes it
  futex_wake_all(rung_);
}

bool Doorbell::take() noexcept {
  return rung_.load(std::memory_order_relaxed) != 0 &&
         rung_.exchange(0, std::memory_order_seq_cst) != 0;
}

bool Doorbell::wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) noexcept {
  if (take()) return true;
  if (timeout <= std::chrono::nanoseconds::zero()) return false;
  const auto start = Clock::now();
  const auto deadline = start + std::min(timeout, kTimeoutMax);
  const auto spin_end = std::min(deadline, start + std::min(policy.spin, kTimeoutMax));
  while (Clock::now() < spin_end) {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (take()) return true;
      cpu_relax();
    }
  }
  for (int i = 0; i < policy.yields; ++i) {
    std::this_thread::yield();
    if (take()) return true;
    if (Clock::now() >= deadline) return false;
  }
  return sleep_until(deadline);
}

bool Doorbell::sleep_until(Clock::time_point deadline) noexcept {
  for (;;) {
    sleeping_.exchange(1, std::memory_order_seq_cst);
    const bool rung = take();
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    if (rung || left.count() <= 0) {
      sleeping_.store(0, std::memory_order_seq_cst);
      return rung;
    }
    futex_wait(rung_, 0, left);  // returns at once if the word is not 0 any more
  }
}

}  // namespace horon::core
