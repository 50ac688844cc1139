// Stops training on all ranks after the same step: before a scheduler kills the job.
//
//   horon::StopRequest stop({.signals = {SIGUSR1, SIGTERM}, .after_seconds = 3.9 * 3600});
//   for (step = 0; step < steps; ++step) {
//     optimizer.step();
//     if (!stop.check()) continue;                 // collective
//     horon::save0(model, "model.pt");
//     break;
//   }
//
// Signals come to some of the ranks, or to all at different times. A rank that stopped by its own
// signal would leave the others waiting in their next step. So the ranks ask each other after each
// step, by an allreduce of 32 bytes, which starts without messages on one host after a few steps:
// microseconds, where the ranks are there at the same time.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "horon/ops/session/process_set.h"

namespace horon {

struct StopRequestOptions {
  // Of its collective. A StopRequest that is checked on another thread than others needs a name of
  // its own.
  std::string name = "stop_request";
  ProcessSet process_set = {};
  std::vector<int> signals = {};             // SIGUSR1, say; not all ranks need to have the same
  std::optional<double> after_seconds = {};  // from the constructor on; from 0; likewise
  // N: the first of each N check()s asks the other ranks; counted anew after a join(). The same on
  // all ranks, from 1.
  int every = 1;
};

namespace torch_detail {

// Signals that are noted instead of having their former effect.
class NotedSignals {
 public:
  explicit NotedSignals(const std::vector<int>& signals);
  ~NotedSignals();
  NotedSignals(const NotedSignals&) = delete;
  NotedSignals& operator=(const NotedSignals&) = delete;

  int greatest() const;  // of those that have come; 0: none
  // Gives the signals that have come their former effect back; the others get it back when they
  // have come once.
  void let_go();

 private:
  std::vector<int> signals_;
};

}  // namespace torch_detail

// One thread at a time; request() from any.
//
// While it lives, its signals are only noted, also if they come several times. Once check() has
// told of a request, a signal that this rank has noted gets its former effect back, so that a
// second Ctrl-C ends a program that would not end. One that this rank has not had is still noted
// once: it may be on its way. The destructor restores all former handlers. A handler that others
// have set in the meantime is left alone.
class StopRequest {
 public:
  // Local, also without a session. Throws Error(InvalidArgument): an option out of its range, a
  // signal that can't be caught (SIGKILL, SIGSTOP), one after which a program can't go on
  // (SIGSEGV), or one that another living StopRequest has.
  explicit StopRequest(StopRequestOptions options = {});
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Asks for the stop from within the program, on one rank or several.
  void request() { requested_ = true; }

  // Returns whether any rank had been asked to stop when it made this call: the same on all ranks,
  // and true for ever once it was true. Collective; with `every` only some calls are. The lowest
  // rank logs the reason (Info). Ranks that have joined are not asked; when they come back they
  // learn what the others know. Throws Error as collectives do; Mismatch if `every` differs. After
  // an error it is as if it had not been called.
  bool check();

  // "signal 10 (SIGUSR1) on rank 3", "request() on rank 3", "the time limit of 14040 s"; empty:
  // none yet. The same on all ranks: of several reasons a signal comes first, then request(); of
  // several ranks the lowest.
  const std::string& reason() const { return reason_; }

 private:
  bool asks_now();
  int own_cause() const;
  void ask();

  const StopRequestOptions options_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  torch_detail::NotedSignals signals_;
  std::atomic<bool> requested_ = false;
  std::pair<uint32_t, uint64_t> counted_in_ = {};  // session, join()s
  int64_t calls_ = 0;                              // of check(), in those
  int64_t agreed_cause_ = 0;
  int64_t agreed_limit_ = 0;
  std::string reason_;
};

}  // namespace horon
