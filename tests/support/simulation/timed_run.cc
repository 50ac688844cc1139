#include "horon/tests/support/simulation/timed_run.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::simulation {

using core::concat;

TimedRun::TimedRun(SimulatedCluster& cluster, const Options& options)
    : cluster_(cluster),
      options_(options),
      quiet_(quiet_time(cluster.options().controller, options)),
      random_(options.seed) {
  ranks_.resize(static_cast<size_t>(cluster.size()));
  for (int rank = 0; rank < cluster.size(); ++rank) {
    schedule(0, Kind::Tick, rank);
    wake_soon(rank);
  }
  for (size_t i = 0; i < options_.faults.size(); ++i) {
    const Fault& fault = options_.faults[i];
    schedule(fault.at, Kind::Fault, fault.rank, static_cast<int>(i));
  }
}

void TimedRun::schedule(Nanos time, Kind kind, int rank, int from) {
  events_.push({time, next_order_++, kind, rank, from});
  if (kind != Kind::Tick) ++busy_events_;
}

// Mostly short times and sometimes long ones, so that both orders of almost any two events occur.
Nanos TimedRun::random_time(Nanos max) {
  const auto limit = static_cast<uint64_t>(max);
  return static_cast<Nanos>(random_() % 4 == 0 ? random_() % (limit + 1)
                                               : random_() % (limit / 16 + 1));
}

// Each fault may be noticed so late; a stall that is too young for one report is in the next. While
// the coordinator stands still, nothing grows older for it.
Nanos TimedRun::quiet_time(const core::Controller::Options& limits, const Options& options) {
  const Nanos grain = 3 * kSecond;
  const Nanos death = limits.ask_after + limits.dead_after + grain;
  const Nanos stall = 2 * limits.stall_warn_after + grain;
  Nanos still = 0;
  for (const Fault& fault : options.faults) {
    if (fault.kind == Fault::Kind::Freeze) still += fault.duration;
  }
  return std::max(stall, death * static_cast<Nanos>(options.faults.size())) + still;
}

void TimedRun::run() {
  while (!over()) step();
}

bool TimedRun::over() const {
  if (events_.empty()) return true;
  if (busy_events_ > 0) return false;
  bool rest = true;
  for (int rank = 0; rank < cluster_.size(); ++rank) {
    const SimulatedCluster::Rank& r = cluster_.rank(rank);
    const bool away = r.dead || r.fatal || r.bye;
    rest = rest && (away || (r.controller->at_rest() && !r.leaving));
  }
  return rest || next_time() - last_progress_ > quiet_;
}

void TimedRun::step() {
  const Event event = events_.top();
  events_.pop();
  now_ = event.time;
  if (event.kind != Kind::Tick) --busy_events_;
  handle(event);
  note_progress();
}

void TimedRun::fail(int rank, const Error& error, Nanos now) {
  now_ = std::max(now_, now);
  cluster_.fail(rank, error);
  wake_soon(rank);
}

void TimedRun::die(int rank, Nanos now) {
  now_ = std::max(now_, now);
  cluster_.die(rank);
  note_progress();
}

void TimedRun::note_progress() {
  if (progress_ == cluster_.progress()) return;
  progress_ = cluster_.progress();
  last_progress_ = now_;
}

size_t TimedRun::rest(Nanos time) {
  size_t messages = 0;
  for (const Nanos end = now_ + time; now_ < end; now_ += kSecond) {
    for (int rank = 0; rank < cluster_.size(); ++rank) {
      cluster_.tick(rank, now_);
      cluster_.flush(rank);
    }
    messages += cluster_.take_sent().size();
  }
  return messages;
}

void TimedRun::handle(const Event& event) {
  Rank& rank = ranks_[static_cast<size_t>(event.rank)];
  switch (event.kind) {
    case Kind::Wake:
      if (now_ < rank.frozen_until) return;  // MoveAgain wakes it
      rank.awake = false;
      return wake(event.rank);
    case Kind::Arrive:
      rank.inbox.push_back(event.from);
      return wake_soon(event.rank);
    case Kind::Finish:
      ++rank.finishes;
      return wake_soon(event.rank);
    case Kind::Append:
      return append(event.rank);
    case Kind::Tick:
      schedule(now_ + options_.tick_every, Kind::Tick, event.rank);
      if (now_ >= rank.frozen_until) wake(event.rank);
      return;
    case Kind::Fault:
      return strike(options_.faults[static_cast<size_t>(event.from)]);
    case Kind::MoveAgain:
      rank.awake = false;
      return wake_soon(event.rank);
  }
}

// A rank that stands still may have filled a place and not yet appended the entry that it owes.
void TimedRun::append(int rank) {
  const Nanos frozen_until = ranks_[static_cast<size_t>(rank)].frozen_until;
  if (now_ < frozen_until) return schedule(frozen_until, Kind::Append, rank);
  if (!cluster_.can_append(rank)) return;
  cluster_.append(rank);
  for (const int woken : cluster_.take_woken()) wake_soon(woken);
}

void TimedRun::strike(const Fault& fault) {
  if (cluster_.rank(fault.rank).dead) return;
  bool all_leave = true;
  for (int rank = 0; rank < cluster_.size(); ++rank) {
    all_leave = all_leave && cluster_.rank(rank).leaving;
  }
  if (all_leave && cluster_.any_batch_runs()) ++faults_at_the_end_;
  Rank& rank = ranks_[static_cast<size_t>(fault.rank)];
  switch (fault.kind) {
    case Fault::Kind::Freeze:
      cluster_.note(concat("t=", now_ / 1000, " us: rank ", fault.rank, " stands still"));
      rank.frozen_until = std::max(rank.frozen_until, now_ + fault.duration);
      schedule(rank.frozen_until, Kind::MoveAgain, fault.rank);
      return;
    case Fault::Kind::Die:
      return cluster_.die(fault.rank);
    case Fault::Kind::DieSending:
      return cluster_.die_sending(fault.rank, fault.sent);
    case Fault::Kind::Fail:
      return fail(fault.rank, Error(ErrorCode::OperationFailed, "the disk is full"), now_);
  }
}

void TimedRun::wake_soon(int rank) {
  if (std::exchange(ranks_[static_cast<size_t>(rank)].awake, true)) return;
  schedule(now_ + random_time(options_.wake_max), Kind::Wake, rank);
}

void TimedRun::wake(int rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (cluster_.rank(rank).dead) return;
  if (cluster_.tracing()) cluster_.head(concat("t=", now_ / 1000, " us"));
  // Messages first and the clock after, as the runtime does.
  for (const int from : std::exchange(r.inbox, {})) cluster_.deliver(from, rank);
  cluster_.tick(rank, now_);
  for (; r.finishes > 0; --r.finishes) {
    if (!cluster_.can_finish(rank)) continue;
    cluster_.finish(rank);
    last_batch_end_ = now_;
  }
  cluster_.flush(rank);
  run_program(rank);
  if (cluster_.rank(rank).fatal && !std::exchange(ended_, true)) {
    silence_before_fatal_ = now_ - last_progress_;
  }
  after_flush();
}

void TimedRun::run_program(int rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  while (now_ >= r.thinks_until && cluster_.can_act(rank)) {
    const SimulatedCluster::Rank& state = cluster_.rank(rank);
    const Action& action = state.program[state.position];
    if (action.kind == Action::Kind::Think) {
      r.thinks_until = now_ + action.time;
      schedule(r.thinks_until, Kind::Wake, rank);
      r.awake = true;
    }
    const bool left = state.leaving;
    cluster_.act(rank);
    if (state.leaving && !left) last_shutdown_ = now_;
    // The runtime may look between any two calls of the program, or after many.
    if (random_() % 2 == 0) cluster_.flush(rank);
  }
  cluster_.flush(rank);
  if (now_ >= r.thinks_until && cluster_.can_act(rank)) wake_soon(rank);
}

void TimedRun::after_flush() {
  for (const auto& [from, to] : cluster_.take_sent()) {
    Nanos& last = last_arrival_[{from, to}];
    last = std::max(last + 1, now_ + 1 + random_time(options_.latency_max));
    schedule(last, Kind::Arrive, to, from);
  }
  for (const int rank : cluster_.take_owing()) {
    schedule(now_ + 1 + random_time(options_.latency_max), Kind::Append, rank);
  }
  for (const int rank : cluster_.take_woken()) wake_soon(rank);
  for ([[maybe_unused]] const uint64_t sequence : cluster_.take_runnable()) {
    for (int rank = 0; rank < cluster_.size(); ++rank) {
      Nanos& last = ranks_[static_cast<size_t>(rank)].last_finish;
      last = std::max(last + 1, now_ + random_time(options_.batch_max));
      schedule(last, Kind::Finish, rank);
    }
  }
}

}  // namespace horon::simulation
