#include "horon/core/host/doorbell.h"

#include <algorithm>

#include "horon/core/base/cpu_relax.h"
#include "horon/core/base/futex.h"

namespace horon::core {

namespace {

using Clock = std::chrono::steady_clock;

// The clock is read once in so many turns: a turn is short, reading the clock is not.
constexpr int kSpinsPerLook = 32;
constexpr std::chrono::nanoseconds kTimeoutMax = std::chrono::hours(1);

}  // namespace

void Doorbell::ring() noexcept {
  switch (state_.exchange(kRung, std::memory_order_seq_cst)) {
    case kHolderSleeps:
      return futex_wake_all(state_);
    case kDeputyOnCall:
      return call_deputy();
    default:  // nobody sleeps, or an earlier ringer wakes the sleeper
      return;
  }
}

bool Doorbell::take() noexcept {
  return state_.load(std::memory_order_relaxed) == kRung &&
         state_.exchange(kQuiet, std::memory_order_seq_cst) == kRung;
}

bool Doorbell::unless_rung(State state) noexcept {
  uint32_t seen = state_.load(std::memory_order_relaxed);
  while (seen != kRung) {
    if (state_.compare_exchange_weak(seen, state, std::memory_order_seq_cst)) return true;
  }
  return false;
}

template <class Done>
bool Doorbell::look_for(const Done& done, const WaitPolicy& policy,
                        Clock::time_point deadline) noexcept {
  if (policy.spin > std::chrono::nanoseconds::zero()) {
    const auto spin_end = std::min(deadline, Clock::now() + std::min(policy.spin, kTimeoutMax));
    while (Clock::now() < spin_end) {
      for (int i = 0; i < kSpinsPerLook; ++i) {
        if (done()) return true;
        cpu_relax();
      }
    }
  }
  return yield_cost_.look(done, policy.look, deadline);
}

bool Doorbell::wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) noexcept {
  if (take()) return true;
  if (timeout <= std::chrono::nanoseconds::zero()) return false;
  const auto deadline = Clock::now() + std::min(timeout, kTimeoutMax);
  return look_for([this] { return take(); }, policy, deadline) || sleep_until(deadline);
}

bool Doorbell::sleep_until(Clock::time_point deadline) noexcept {
  while (unless_rung(kHolderSleeps)) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
    if (left.count() <= 0) {
      if (unless_rung(kQuiet)) return false;
      break;
    }
    futex_wait(state_, kHolderSleeps, left);  // returns at once if it has been rung
  }
  return take();
}

bool Doorbell::look(std::chrono::nanoseconds limit, const WaitPolicy& policy,
                    const std::atomic<bool>& stop) noexcept {
  const auto deadline = Clock::now() + std::min(limit, kTimeoutMax);
  (void)look_for([&] { return rung() || stop.load(std::memory_order_relaxed); }, policy, deadline);
  return rung();
}

void Doorbell::set_deputy_on_call(bool on_call) noexcept {
  if (!unless_rung(on_call ? kDeputyOnCall : kQuiet) && on_call) call_deputy();
}

void Doorbell::stand_by(uint32_t calls_seen, std::chrono::nanoseconds timeout) noexcept {
  futex_wait(calls_, calls_seen, std::min(timeout, kTimeoutMax));
}

void Doorbell::call_deputy() noexcept {
  calls_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(calls_);
}

}  // namespace horon::core
