// An event in memory that tells one rank to look at its shared memory, its messages and its
// submissions: any number of ringers, in any thread of any process that maps it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "horon/core/base/yield_cost.h"

namespace horon::core {

// How long a waiter looks by itself before it sleeps. Spinning pays only while every waiter has a
// core of its own; yields let the others run and cost far less than a sleep. Where they turn out to
// be dear (yield_cost.h), it sleeps at once.
struct WaitPolicy {
  std::chrono::nanoseconds spin{0};
  Look look;
};

// Two threads of a rank answer it, never both at once: the one that holds the right to step the
// rank's loop, and a deputy that sleeps until that right is free and something rings. A ring makes
// a system call only if somebody sleeps, and wakes one thread. Valid as zeroed memory; must stay at
// one address while in use.
class alignas(64) Doorbell {
 public:
  // Everything written before ring() is visible to a thread that has seen the ring in take() or
  // wait().
  void ring() noexcept;

  // The holder:
  // Forgets a ring; true if there was one. Look at everything after this.
  bool take() noexcept;
  // Returns at once if rung since the last take(), else looks as `policy` says, then sleeps. Takes
  // the ring. True if it was rung, false if the timeout came first.
  bool wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) noexcept;
  // From now on a ring wakes the deputy (true) or only sets the event (false). A ring that has not
  // been taken yet wakes the deputy in this call.
  void set_deputy_on_call(bool on_call) noexcept;
  // For the deputy: stand_by(calls()) misses no call that comes after calls() was read.
  uint32_t calls() const noexcept { return calls_.load(std::memory_order_seq_cst); }

  // For the deputy, while it does not hold the right: sleeps until call_deputy() has been called
  // since calls() returned `calls_seen`, or the timeout. May return early.
  void stand_by(uint32_t calls_seen, std::chrono::nanoseconds timeout) noexcept;
  // Any thread:
  void call_deputy() noexcept;
  bool rung() const noexcept { return state_.load(std::memory_order_acquire) == kRung; }
  // Looks as `policy` says until rung() or `stop`, for `limit` at most, and does not take the ring.
  // True if rung.
  bool look(std::chrono::nanoseconds limit, const WaitPolicy& policy,
            const std::atomic<bool>& stop) noexcept;

 private:
  // Whether it is rung and who sleeps are one word: one exchange rings and learns whom to wake.
  // With two words, what a slow ringer does to the second one could hide the rings of others.
  enum State : uint32_t { kQuiet, kRung, kHolderSleeps, kDeputyOnCall };
  // Called by the holder: sets the state that the next ring will find. False if it has been rung:
  // then nothing changes.
  bool unless_rung(State state) noexcept;
  // Spins and yields until `done` says yes, the deadline has passed or the policy ends it. True if
  // `done`.
  template <class Done>
  bool look_for(const Done& done, const WaitPolicy& policy,
                std::chrono::steady_clock::time_point deadline) noexcept;
  bool sleep_until(std::chrono::steady_clock::time_point deadline) noexcept;

  std::atomic<uint32_t> state_{kQuiet};  // the futex word of the holder
  std::atomic<uint32_t> calls_{0};       // the futex word of the deputy
  YieldCost yield_cost_;                 // of the holder and the deputy
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "a futex word must be a plain word");

}  // namespace horon::core
