// The promise of one submitted entry: the loop keeps it, the program waits for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/execution/event.h"
#include "horon/core/runtime/completion_queue.h"

namespace horon::core {

// What a finished entry tells its submitter.
struct Outcome {
  std::optional<Error> error;
  // Nobody had anything for this entry: its memory was not touched.
  bool unused = false;
  // Of a collective: how many members have not joined. Average divides by this number.
  int contributors = 0;
  // join(): the rank that came last.
  int last_joined = -1;
  // Per part: did any rank contribute? Empty means all parts.
  std::vector<bool> produced;
  // Allgather, Gather, Alltoall, Scatter: elements that came from each member, part by part;
  // Reducescatter: elements of each part.
  std::vector<int64_t> received;
  // Null: the result is in memory. Otherwise a device computes it, and it is in memory once this
  // event has happened: the stream that reads it must wait for the event, or the host must (get()).
  std::shared_ptr<Event> done;
};

class LoopSeat;

class HandleState {
 public:
  // A wait steps the loop of `seat` where it can (loop_seat.h), and when the wait ends it releases
  // what is in the seat's reaper. Null: a wait only sleeps.
  explicit HandleState(std::shared_ptr<LoopSeat> seat = nullptr);
  ~HandleState();
  HandleState(const HandleState&) = delete;
  HandleState& operator=(const HandleState&) = delete;

  // Called once, by whoever steps the loop.
  void finish(Outcome outcome);
  bool finished() const noexcept { return state_.load(std::memory_order_acquire) == kFinished; }
  // Blocks until finished or the timeout. True if finished: then the result is in memory, or all
  // the work that leads to it is enqueued (Outcome::done). Any thread of the program, any number of
  // waiters. In a forked child, which has no loop, an unfinished handle never finishes: returns
  // false at once.
  bool wait(std::optional<std::chrono::nanoseconds> timeout) const;
  // Puts the token into the queue once this has finished, or now if it already has. May be called
  // several times; each call puts one token. Any thread.
  void notify(std::shared_ptr<CompletionQueue> queue, uint64_t token) const;
  // Blocks until the result is in memory, also where a device computes it: the host may read it,
  // and nothing of this entry can fail any more. Throws the Error with which the entry has ended;
  // in a forked child Error(NotInitialized). Any thread.
  const Outcome& get() const;
  // Blocks until finished, but does not wait for the device: whoever reads the result there makes
  // its stream wait for Outcome::done (null where the result is in memory). Throws like get() what
  // has failed so far; a later failure ends the job, and get() throws it. Any thread.
  const Outcome& get_enqueued() const;
  // The work that was enqueued when the handle finished has failed, or will never end. Called by
  // whoever steps the loop, at most once, after finish().
  void fail_enqueued(const Error& error);
  // Valid once finished.
  const Outcome& outcome() const { return outcome_; }

 private:
  using Clock = std::chrono::steady_clock;
  bool wait_until_finished(Clock::time_point deadline) const;
  bool sleep_until_finished(Clock::time_point deadline) const;
  void throw_enqueued_error() const;

  static constexpr uint32_t kPending = 0, kPendingWithWaiters = 1, kFinished = 2;
  mutable std::atomic<uint32_t> state_{kPending};
  Outcome outcome_;
  std::atomic<bool> enqueued_failed_{false};
  std::optional<Error> enqueued_error_;  // written before enqueued_failed_ is set
  const std::shared_ptr<LoopSeat> seat_;
  // A list of what finish() will put into queues, the newest first; kTold once it has done so.
  mutable std::atomic<CompletionQueue::Entry*> told_{nullptr};
};

// Finishes the handle and resets `handle`, so that none is finished twice. Null: does nothing.
void finish(std::shared_ptr<HandleState>& handle, std::optional<Error> error) noexcept;

}  // namespace horon::core
