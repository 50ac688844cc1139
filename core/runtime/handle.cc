#include "horon/core/runtime/handle.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "horon/core/base/futex.h"
#include "horon/core/runtime/reaper.h"

namespace horon::core {

HandleState::HandleState(std::shared_ptr<Reaper> reaper) : reaper_(std::move(reaper)) {}

void HandleState::finish(Outcome outcome) {
  outcome_ = std::move(outcome);
  const uint32_t before = state_.exchange(kFinished, std::memory_order_acq_rel);
  HORON_CHECK(before != kFinished, "a handle finished twice");
  if (before == kPendingWithWaiters) futex_wake_all(state_);
}

bool HandleState::wait(std::optional<std::chrono::nanoseconds> timeout) const {
  if (!wait_until_finished(timeout)) return false;
  if (reaper_ != nullptr) reaper_->release();
  return true;
}

bool HandleState::wait_until_finished(std::optional<std::chrono::nanoseconds> timeout) const {
  using Clock = std::chrono::steady_clock;
  // With more threads than cores a yield often runs the very thread that finishes us; a sleep costs
  // more on both sides.
  constexpr int yields = 20;
  for (int i = 0; i < yields; ++i) {
    if (finished()) return true;
    std::this_thread::yield();
  }
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
  const auto deadline = Clock::now() + std::min(timeout.value_or(longest), longest);
  while (!finished()) {
    uint32_t seen = kPending;
    state_.compare_exchange_strong(seen, kPendingWithWaiters, std::memory_order_acq_rel);
    if (seen == kFinished) break;
    const std::chrono::nanoseconds left = deadline - Clock::now();
    if (left.count() <= 0) return finished();
    futex_wait(state_, kPendingWithWaiters, left);
  }
  return true;
}

const Outcome& HandleState::get() const {
  wait(std::nullopt);
  if (outcome_.error) throw Error(*outcome_.error);
  return outcome_;
}

}  // namespace horon::core
