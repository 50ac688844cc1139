// Who steps the runtime loop: whoever waits, drives.
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
#include <thread>

#include "horon/core/base/error.h"
#include "horon/core/base/yield_cost.h"
#include "horon/core/runtime/reaper.h"

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

  // The life of the background thread: from open() on it steps the loop while nobody else does,
  // until it has ended, and closes it.
  void serve(RuntimeLoop& loop) noexcept;
  void open() noexcept;

  enum class Drive : uint8_t {
    Finished,  // the handle has
    TimedOut,
    Taken,   // another thread of the program drives
    NoLoop,  // it has not begun or has ended; the background thread finishes the handle
  };
  // Steps the loop until `handle` has finished or the deadline has passed. Any thread of the
  // program.
  Drive drive(const HandleState& handle, Clock::time_point deadline) noexcept;
  // Steps the loop a few times, if nobody else does: what this thread has just handed over is on
  // its way without a wake-up. False if somebody else must be woken for it. Any thread of the
  // program.
  bool step_now() noexcept;

  bool is_driven() const noexcept { return driven_.load(std::memory_order_seq_cst); }
  bool is_over() const noexcept { return over_.load(std::memory_order_acquire); }
  // True within a call of the loop that comes back to the program: exit() from a signal handler, or
  // from a callback.
  bool held_by_this_thread() const noexcept {
    return holder_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  // By the thread that holds the seat and will not come back to it. If it was asleep, the other
  // ranks are told.
  void end_from_within(const Error& error) noexcept;

  // While one lives, a driver that stops sees to it that the background thread goes on.
  class Passenger {
   public:
    explicit Passenger(LoopSeat& seat) : seat_(seat) {
      seat_.passengers_.fetch_add(1, std::memory_order_seq_cst);
    }
    ~Passenger() { seat_.passengers_.fetch_sub(1, std::memory_order_seq_cst); }
    Passenger(const Passenger&) = delete;
    Passenger& operator=(const Passenger&) = delete;

   private:
    LoopSeat& seat_;
  };

  Reaper reaper;         // released by threads of the program
  YieldCost yield_cost;  // of threads that wait while another one drives

 private:
  class Held;
  // The seat is free again: a ring wakes the background thread, or it is called now if somebody
  // must go on.
  void hand_over(bool unfinished) noexcept;
  void wait_for_drivers() const noexcept;
  void sleep(std::unique_lock<std::mutex>& lock) noexcept;

  std::mutex mutex_;                 // the seat
  RuntimeLoop* loop_ = nullptr;      // by the mutex; null before serve() and after it
  std::atomic<bool> driven_{false};  // a thread of the program drives, or is about to
  std::atomic<bool> over_{false};    // serve() has ended
  std::atomic<int> passengers_{0};
  std::atomic<bool> open_{false};
  // The driver is in its sleep, where the loop is whole; for signal handlers on its thread.
  std::atomic<bool> driver_sleeps_{false};
  std::atomic<std::thread::id> holder_{};
};

}  // namespace horon::core
