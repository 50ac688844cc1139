// One call of a process group on its way: its collectives, and what becomes of their results.
//
// On a GPU a collective has ended when its work is in a stream. The current stream of the thread
// that takes the outcome waits for that work; the host does not.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/runtime/completion_queue.h"
#include "horon/torch_bindings/collectives/pending_collective.h"
#include "horon/torch_bindings/python/process_group/profiled_call.h"

namespace horon::python::process_group {

using Pending = std::shared_ptr<torch_detail::PendingCollective>;
using Tensors = std::vector<at::Tensor>;

// Any thread, without the GIL.
class Operation {
 public:
  using Clock = std::chrono::steady_clock;
  // Writes the results of the collectives, which have succeeded, where the caller wants them.
  using Deliver = std::function<void(const std::vector<Pending>&)>;

  // AtOnce: the program calls wait() directly after the call. Then this thread does the work in the
  // call, where otherwise another one would be woken for it.
  enum class Waits : bool { Perhaps, AtOnce };

  // Made when the call begins. `outputs`: the tensors that hold the result in the end; detached,
  // since a thread that lets go of a tensor of Python's needs the GIL. Sparse ones are kept as they
  // are: a detached one would not get the entries of the result.
  Operation(::c10d::OpType type, ProfiledCall profiled, const Tensors& outputs,
            std::chrono::milliseconds timeout, Waits waits = Waits::Perhaps);

  // Before it is given to others:
  // Submits it, in its name's turn, and adds it. `alone`: no other one is begun.
  void begin(Pending pending, bool alone);
  void add(Pending pending);  // one that has begun
  void deliver_by(Deliver deliver) { deliver_ = std::move(deliver); }
  // The time is counted from each wait and not from the call: a receive may be posted long before
  // its message can come.
  void count_time_in_wait() { counts_in_wait_ = true; }

  // After it has begun, or has failed to. If its caller waits at once, this thread works on it, but
  // no longer than a signal handler may be left to wait.
  void work_if_waited_for() const noexcept;

  enum class Asks : bool { No, SignalHandlers };  // while it waits, core::wait_check()
  // Returns when all collectives have ended, well or badly. Throws Error(Timeout) when the time is
  // over, counted from the call; but see above.
  void wait(Asks asks) const { wait_until(deadline_of_wait(), asks); }
  // The deadline of a wait that begins now.
  Clock::time_point deadline_of_wait() const {
    return counts_in_wait_ ? deadline_after(timeout_) : deadline_;
  }
  void wait_until(Clock::time_point deadline, Asks asks) const;
  // `timeout` from `begin` on. A year is as good as for ever, and overflows nowhere.
  static Clock::time_point deadline_after(std::chrono::milliseconds timeout,
                                          Clock::time_point begin = Clock::now()) {
    return begin + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  }
  // Puts the token into the queue whenever one of the collectives has ended.
  void notify(const std::shared_ptr<core::CompletionQueue>& queue, uint64_t token) const;
  // Returns when a collective of another operation, which this one can't begin before, has ended.
  // Throws as wait() does, and asks signal handlers.
  void wait_for_earlier(const torch_detail::PendingCollective& earlier) const;
  // Calls `comes` with a time limit, again and again, until it returns true: then the call of
  // another thread that this one stands behind has begun. Throws and asks as above.
  void wait_for_turn(const std::function<bool(std::chrono::nanoseconds)>& comes) const;
  bool finished() const;
  // Whether outcome() writes into the caller's tensors, so that they hold nothing before.
  bool delivers() const;
  // finished(), and the results are in memory, also on a GPU. Lets no stream wait.
  bool completed();
  // The error of the collectives, after they have ended; the first call delivers the results. Null:
  // all is well, and the current stream of this thread waits for the results.
  std::exception_ptr outcome();
  // Whether outcome() has done so: on the CPU it does nothing more.
  bool has_delivered() const { return has_delivered_.load(std::memory_order_acquire); }
  // Of its tensors.
  c10::Device device() const { return device_; }
  // Whether it is part of a graph that is being captured: then it is done once it is enqueued.
  bool is_captured() const;
  // The current stream, which nobody else knows, has been made to wait for the results. In a
  // capture, whoever waits for the results must wait for that stream too, or the capture could not
  // end.
  void note_stream_aside();

  const Tensors& outputs() const { return outputs_; }
  ::c10d::OpType type() const { return type_; }
  // A profiler shows how long it takes, so some thread is to wait for its end.
  bool is_profiled() const { return profiled_.records(); }

 private:
  bool happened() const;
  void follow_in_current_stream() const;

  const ::c10d::OpType type_;
  ProfiledCall profiled_;
  Tensors outputs_;
  c10::Device device_{c10::kCPU};
  const Clock::time_point begin_ = Clock::now();
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  bool counts_in_wait_ = false;
  const Waits waits_;
  std::vector<Pending> pending_;
  Deliver deliver_;
  std::once_flag delivered_;
  std::atomic<bool> has_delivered_{false};
  std::unique_ptr<core::Event> written_;  // what deliver_ has enqueued on a GPU
  mutable std::mutex aside_mutex_;
  std::unique_ptr<core::Event> aside_;  // of note_stream_aside()
  std::exception_ptr fault_;
};

}  // namespace horon::python::process_group
