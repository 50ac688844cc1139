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
  // Of a collective: the members that have not joined, which is what Average divides by.
  int contributors = 0;
  // join(): the rank that came last.
  int last_joined = -1;
  // Per part: did any rank contribute? Empty means all parts.
  std::vector<bool> produced;
  // Allgather, Gather, Alltoall, Scatter: elements that came from each member, part by part;
  // Reducescatter: elements of each part.
  std::vector<int64_t> received;
  // Null: the result is in memory. Else it is being computed on a device, and will be there when
  // this happens: let the stream that reads it wait for the event, or the host (get()).
  std::shared_ptr<Event> done;
};

class LoopSeat;

class HandleState {
 public:
  // A wait steps the loop of this seat where it can (loop_seat.h), and when it ends it releases
  // what is in its reaper. Null: a wait only waits.
  explicit HandleState(std::shared_ptr<LoopSeat> seat = nullptr);
  ~HandleState();
  HandleState(const HandleState&) = delete;
  HandleState& operator=(const HandleState&) = delete;

  // Whoever steps the loop, once.
  void finish(Outcome outcome);
  bool finished() const noexcept { return state_.load(std::memory_order_acquire) == kFinished; }
  // Blocks until finished or the timeout; true if finished: then the result is in memory, or all
  // the work that leads to it is enqueued (Outcome::done). Any thread of the program, any number of
  // waiters. In a forked child, whose parent has the job, what has not finished never does: false
  // at once.
  bool wait(std::optional<std::chrono::nanoseconds> timeout) const;
  // Puts the token into the queue once this has finished: at once, if it has. As often as it is
  // called. Any thread.
  void notify(std::shared_ptr<CompletionQueue> queue, uint64_t token) const;
  // Blocks until the result is in memory, on a device too: the host may read it, and nothing of
  // this entry can fail any more. Throws the Error that it has ended with; in a forked child
  // Error(NotInitialized). Any thread.
  const Outcome& get() const;
  // Blocks until finished and not for the device: whoever reads the result on a device makes its
  // stream wait for Outcome::done, which is null where the result is in memory. Throws as get()
  // does what has failed so far; what fails later ends the job, and get() throws it. Any thread.
  const Outcome& get_enqueued() const;
  // The work that was enqueued when the handle finished has failed, or never ends. Whoever steps
  // the loop, at most once, after finish().
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
  // What finish() puts into queues, the newest first; kTold once it has.
  mutable std::atomic<CompletionQueue::Entry*> told_{nullptr};
};

// Takes the handle, so that none is finished twice; nothing happens if it is null.
void finish(std::shared_ptr<HandleState>& handle, std::optional<Error> error) noexcept;

}  // namespace horon::core
