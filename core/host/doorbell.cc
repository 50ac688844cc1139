#include "horon/core/host/doorbell.h"

#include <algorithm>
#include <linux/futex.h>
#include <sys/syscall.h>
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
  if (sleeper_.load(std::memory_order_seq_cst) == kNobody) return;
  switch (sleeper_.exchange(kNobody, std::memory_order_seq_cst)) {
    case kHolder:
      return futex_wake_all(rung_);
    case kDeputy:
      return call_deputy();
    default:  // another ringer wakes it
      return;
  }
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
  return yield_cost_.look([this] { return take(); }, policy.look, deadline) ||
         sleep_until(deadline);
}

bool Doorbell::sleep_until(Clock::time_point deadline) noexcept {
  for (;;) {
    sleeper_.exchange(kHolder, std::memory_order_seq_cst);
    const bool rung = take();
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    if (rung || left.count() <= 0) {
      sleeper_.store(kNobody, std::memory_order_seq_cst);
      return rung;
    }
    futex_wait(rung_, 0, left);  // returns at once if the word is not 0 any more
  }
}

bool Doorbell::look(const WaitPolicy& policy, const std::atomic<bool>& stop) noexcept {
  if (policy.spin.count() > 0) {
    const auto spin_end = Clock::now() + std::min(policy.spin, kTimeoutMax);
    while (Clock::now() < spin_end && !stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (rung()) return true;
        cpu_relax();
      }
    }
  }
  const auto rung_or_stopped = [&] { return rung() || stop.load(std::memory_order_relaxed); };
  (void)yield_cost_.look(rung_or_stopped, policy.look, Clock::time_point::max());
  return rung();
}

void Doorbell::set_deputy_on_call(bool on_call) noexcept {
  sleeper_.exchange(on_call ? kDeputy : kNobody, std::memory_order_seq_cst);
  if (!on_call || rung_.load(std::memory_order_seq_cst) == 0) return;
  if (sleeper_.exchange(kNobody, std::memory_order_seq_cst) == kDeputy) call_deputy();
}

void Doorbell::stand_by(uint32_t calls_seen, std::chrono::nanoseconds timeout) noexcept {
  futex_wait(calls_, calls_seen, std::min(timeout, kTimeoutMax));
}

void Doorbell::call_deputy() noexcept {
  calls_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(calls_);
}

}  // namespace horon::core
