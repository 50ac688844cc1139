// An auto-reset event in memory: one waiter, any number of ringers, in any thread of any process
// that maps it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace horon::core {

// How long a waiter looks by itself before it sleeps. Spinning pays only while every waiter has a
// core of its own; with more ranks than cores a few yields let the others run and cost far less
// than a sleep.
struct WaitPolicy {
  std::chrono::nanoseconds spin{0};
  int yields = 20;
};

// Nobody makes a system call unless the waiter sleeps. Valid as zeroed memory; must stay at one
// place while in use.
class alignas(64) Doorbell {
 public:
  // Everything written before ring() is visible after the wait() that it ends.
  void ring() noexcept;

  // Returns at once if rung since the last wait, else looks as `policy` says, then sleeps. True if
  // it was rung, false if the timeout came first. One thread at a time.
  bool wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) noexcept;

 private:
  bool take() noexcept;
  bool sleep_until(std::chrono::steady_clock::time_point deadline) noexcept;

  std::atomic<uint32_t> rung_{0};  // the futex word
  std::atomic<uint32_t> sleeping_{0};
};

static_assert(std::atomic<uint32_t>::is_always_lock_free, "a futex word must be a plain word");

}  // namespace horon::core
