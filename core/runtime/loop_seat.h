// Decides which thread steps the runtime loop: whoever waits, drives.
//
// A thread of the program that waits for a handle steps the loop itself, so that what it waits for
// needs no hop to another thread. While nobody waits, the background thread steps it: it is the
// deputy of the doorbell (host/doorbell.h). One thread at a time holds the seat, and with it the
// loop, the transport and MPI.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "horon/core/base/error.h"
#include "horon/core/base/nap_cost.h"
#include "horon/core/base/yield_cost.h"
#include "horon/core/runtime/reaper.h"
#include "horon/core/runtime/seat_visitor.h"

namespace horon::core {

class HandleState;
class RuntimeLoop;

// Shared by the runtime and its handles, which may outlive it.
class LoopSeat {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  LoopSeat();
  LoopSeat(const LoopSeat&) = delete;
  LoopSeat& operator=(const LoopSeat&) = delete;

  // The body of the background thread: from open() on it steps the loop while nobody else does.
  // When the loop has ended, it closes the loop and returns.
  void serve(RuntimeLoop& loop) noexcept;
  void open() noexcept;

  enum class Drive : uint8_t {
    Finished,  // the handle has
    TimedOut,  // without a deadline: a wait_check() is due
    Taken,     // another thread of the program drives
    NoLoop,    // the loop has not begun or has ended; the background thread finishes the handle
  };
  // Steps the loop until `handle` has finished or the deadline has passed. Any thread of the
  // program.
  Drive drive(const HandleState& handle, Clock::time_point deadline) noexcept;
  // Steps the loop a few times, if nobody else does: sends what this thread has just submitted
  // without waking another thread. False: another thread must be woken for it. Any thread of the
  // program.
  bool step_now() noexcept;

  bool is_driven() const noexcept { return driven_.load(std::memory_order_seq_cst); }
  bool is_over() const noexcept { return over_.load(std::memory_order_acquire); }
  // This thread is inside the loop already, or in line for it: the caller is a callback, or a
  // signal handler, which may have called exit().
  bool held_by_this_thread() const noexcept;
  // For a thread that is inside the loop and will not come back to it. Tells the other ranks if the
  // thread was the driver, asleep between two turns.
  void end_from_within(const Error& error) noexcept;

  // Counts a thread that sleeps until its handle finishes. While there is one, a driver that stops
  // wakes the background thread.
  class SleepingWaiter {
   public:
    explicit SleepingWaiter(LoopSeat& seat) : seat_(seat) {
      seat_.sleeping_waiters_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~SleepingWaiter() { seat_.sleeping_waiters_.fetch_sub(1, std::memory_order_seq_cst); }
    SleepingWaiter(const SleepingWaiter&) = delete;
    SleepingWaiter& operator=(const SleepingWaiter&) = delete;

   private:
    LoopSeat& seat_;
  };

  std::shared_ptr<SeatVisitor> visitor;  // may be null; not changed once the seat is open
  Reaper reaper;                         // released by threads of the program
  YieldCost yield_cost;                  // of threads that wait while another one drives

 private:
  class Inside;
  class DueCall;
  class Held;
  // Leaves the loop to the background thread. Wakes it at once if `unfinished` or if something must
  // be polled; otherwise the next ring wakes it.
  void hand_over(bool unfinished) noexcept;
  void wait_for_drivers() noexcept;
  void sleep(std::unique_lock<std::mutex>& lock) noexcept;

  std::mutex mutex_;                 // the seat
  NapCost nap_cost_;                 // of the background thread
  RuntimeLoop* loop_ = nullptr;      // by the mutex; null before serve() and after it
  std::atomic<bool> driven_{false};  // a thread of the program drives, or is about to
  // The background thread may sleep in the false belief that a driver is there. Whoever frees the
  // seat wakes it (DueCall).
  std::atomic<bool> call_is_due_{false};
  std::atomic<bool> over_{false};  // serve() has closed the loop
  std::atomic<int> sleeping_waiters_{0};
  std::atomic<bool> open_{false};
  static thread_local const Inside* innermost_;  // what this thread is inside of
};

}  // namespace horon::core
