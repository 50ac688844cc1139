#include "horon/core/runtime/handle.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/forked_child.h"
#include "horon/core/base/futex.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/runtime/loop_seat.h"

namespace horon::core {

namespace {

using Entry = CompletionQueue::Entry;

// Marks a list that takes no more entries.
Entry kTold;

// Takes the first entry off the list, which is the newest one.
std::unique_ptr<Entry> pop(Entry*& list) {
  std::unique_ptr<Entry> entry(list);
  list = entry->next.release();
  return entry;
}

}  // namespace

HandleState::HandleState(std::shared_ptr<LoopSeat> seat) : seat_(std::move(seat)) {}

HandleState::~HandleState() {
  Entry* list = told_.load(std::memory_order_acquire);
  while (list != nullptr && list != &kTold) (void)pop(list);
}

void HandleState::notify(std::shared_ptr<CompletionQueue> queue, uint64_t token) const {
  if (queue == nullptr) throw Error(ErrorCode::InvalidArgument, "notify(): the queue is null");
  auto entry = std::make_unique<Entry>();
  entry->queue = std::move(queue);
  entry->token = token;
  Entry* seen = told_.load(std::memory_order_acquire);
  while (seen != &kTold) {
    entry->next.reset(seen);
    if (told_.compare_exchange_weak(seen, entry.get(), std::memory_order_acq_rel)) {
      (void)entry.release();
      return;
    }
    (void)entry->next.release();  // the list owns it
  }
  CompletionQueue::push(std::move(entry));
}

void HandleState::finish(Outcome outcome) {
  outcome_ = std::move(outcome);
  const uint32_t before = state_.exchange(kFinished, std::memory_order_acq_rel);
  HORON_CHECK(before != kFinished, "a handle finished twice");
  if (before == kPendingWithWaiters) futex_wake_all(state_);
  Entry* list = told_.exchange(&kTold, std::memory_order_acq_rel);
  while (list != nullptr) CompletionQueue::push(pop(list));
}

void finish(std::shared_ptr<HandleState>& handle, std::optional<Error> error) noexcept {
  const std::shared_ptr<HandleState> finishing = std::exchange(handle, nullptr);
  if (finishing == nullptr) return;
  Outcome outcome;
  outcome.error = std::move(error);
  finishing->finish(std::move(outcome));
}

bool HandleState::wait(std::optional<std::chrono::nanoseconds> timeout) const {
  if (!finished()) {
    if (in_forked_child()) return false;
    constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
    const auto deadline =
        timeout ? Clock::now() + std::clamp(*timeout, std::chrono::nanoseconds(0), longest)
                : LoopSeat::kNever;
    while (!wait_until_finished(deadline)) {
      if (timeout) return false;
      if (const WaitCheck check = wait_check()) check();
    }
  }
  if (seat_ != nullptr) seat_->reaper.release();
  return true;
}

bool HandleState::wait_until_finished(Clock::time_point deadline) const {
  if (seat_ == nullptr) return sleep_until_finished(deadline);
  for (;;) {
    switch (seat_->drive(*this, deadline)) {
      case LoopSeat::Drive::Finished:
      case LoopSeat::Drive::TimedOut:
        return finished();
      case LoopSeat::Drive::NoLoop:
        return sleep_until_finished(deadline);
      case LoopSeat::Drive::Taken: {
        // A driver that stops checks for registered waiters and then wakes the background thread.
        const LoopSeat::SleepingWaiter registered(*seat_);
        if (seat_->is_driven()) return sleep_until_finished(deadline);
      }
    }
  }
}

bool HandleState::sleep_until_finished(Clock::time_point deadline) const {
  // With more threads than cores a yield often runs the very thread that will finish this handle; a
  // sleep costs more on both sides.
  if (seat_ != nullptr && seat_->yield_cost.look([this] { return finished(); }, Look{}, deadline)) {
    return true;
  }
  if (deadline == LoopSeat::kNever && wait_check() != nullptr) {
    deadline = Clock::now() + kWaitCheckInterval;
  }
  while (!finished()) {
    uint32_t seen = kPending;
    state_.compare_exchange_strong(seen, kPendingWithWaiters, std::memory_order_acq_rel);
    if (seen == kFinished) break;
    constexpr std::chrono::nanoseconds longest = std::chrono::hours(1);
    const auto left = deadline == LoopSeat::kNever ? longest : deadline - Clock::now();
    if (left.count() <= 0) return finished();
    futex_wait(state_, kPendingWithWaiters, left);
  }
  return true;
}

const Outcome& HandleState::get_enqueued() const {
  if (!wait(std::nullopt)) refuse_forked_child();
  if (outcome_.error) throw Error(*outcome_.error);
  throw_enqueued_error();
  return outcome_;
}

const Outcome& HandleState::get() const {
  const Outcome& outcome = get_enqueued();
  if (outcome.done == nullptr) return outcome;
  try {
    outcome.done->wait();
  } catch (...) {
    throw_enqueued_error();  // the cause, where the device tells only that it failed
    throw;
  }
  throw_enqueued_error();  // after an abort the event happens too, without a valid result
  return outcome;
}

void HandleState::throw_enqueued_error() const {
  if (enqueued_failed_.load(std::memory_order_acquire)) throw Error(*enqueued_error_);
}

void HandleState::fail_enqueued(const Error& error) {
  enqueued_error_ = error;
  enqueued_failed_.store(true, std::memory_order_release);
}

}  // namespace horon::core
