#include "horon/core/runtime/runtime_loop.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/overloaded.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/core/runtime/reaper.h"

namespace horon::core {
namespace {

// Takes the handle, so that none is finished twice.
void finish(std::shared_ptr<HandleState>& handle, std::optional<Error> error) noexcept {
  const std::shared_ptr<HandleState> finishing = std::exchange(handle, nullptr);
  if (finishing == nullptr) return;
  Outcome outcome;
  outcome.error = std::move(error);
  finishing->finish(std::move(outcome));
}

// For what must not keep the rest from happening when a job ends.
template <class Action>
void attempt(const Action& action) noexcept {
  try {
    action();
  } catch (...) {  // the first cause of the end has been told or logged; this is a consequence
  }
}

std::vector<int> all_ranks(const Topology& topology) {
  std::vector<int> ranks(static_cast<size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

RuntimeLoop::RuntimeLoop(Parts parts, RuntimeDoor& door)
    : config_(*parts.config),
      topology_(*parts.topology),
      timeline_(std::move(parts.timeline)),
      transport_(parts.transport),
      make_set_(std::move(parts.make_set)),
      reaper_(parts.reaper),
      out_of_memory_(ErrorCode::Limit, concat("rank ", topology_.rank, " is out of memory")),
      door_(door) {
  add_runner(kWorldSet, all_ranks(topology_), std::move(parts.world));
}

bool RuntimeLoop::turn() noexcept {
  try {
    return try_turn();
  } catch (...) {
    end_job(failure_of_turn());
    return true;
  }
}

void RuntimeLoop::close() noexcept {
  flush_messages();
  // The program's other threads may have submitted between the last turn and here.
  door_.queue.close(door_.shut_down);
  finish_calls(*door_.shut_down);
  attempt([&] { runners_.clear(); });
}

void RuntimeLoop::flush_messages() {
  const auto limit = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < limit) {
    try {
      if (transport_->flushed()) return;
      (void)transport_->receive();
    } catch (
        ...) {  // a part of the transport is broken: the other may still have something to send
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

bool RuntimeLoop::try_turn() {
  const Nanos now = Clock::now().time_since_epoch().count();
  for (auto& [id, runner] : runners_) runner->set_time(now);
  bool news = take_calls();
  news = take_messages() || news;
  for (auto& [id, runner] : runners_) news = runner->decide(now, outbox_) || news;
  if (fatal_now_) {
    // Whoever is in another set must hear it too.
    for (auto& [id, runner] : runners_) {
      runner->fail(*door_.fatal);
      (void)runner->decide(now, outbox_);
    }
  }
  for (Outgoing& message : outbox_) transport_->send(message.to, std::move(message.bytes));
  outbox_.clear();
  note_stalls();
  if (fatal_now_) {
    end_all(*door_.fatal);  // the controllers have told the other ranks
    return true;
  }
  for (auto& [id, runner] : runners_) news = runner->work() || news;
  forget_removed_sets();
  if (all_over()) ended_ = true;
  if (ended_ || news) pacer_.news();
  return ended_ || news;
}

bool RuntimeLoop::take_calls() {
  calls_.clear();
  door_.queue.drain(calls_);
  for (Call& call : calls_) take_call(call);
  return !calls_.empty();
}

void RuntimeLoop::take_call(Call& call) {
  std::visit(Overloaded{
                 [&](Submission& submission) { take(std::move(submission)); },
                 [&](Refusal& refusal) {
                   const auto runner = runners_.find(refusal.set);
                   if (runner != runners_.end()) runner->second->refuse(refusal);
                 },
                 [&](JoinCall& join) {
                   const auto runner = runners_.find(join.set);
                   if (runner == runners_.end()) return finish(join.handle, removed(join.set));
                   runner->second->join(std::move(join.handle));
                 },
                 [&](AddSetCall& add) { take(add); },
                 [&](RemoveSetCall& remove) { take(remove); },
                 [&](ShutdownCall&) {
                   shut_down_ = true;
                   for (auto& [id, runner] : runners_) runner->shut_down();
                 },
             },
             call);
}

Error RuntimeLoop::removed(uint32_t set) {
  return Error(ErrorCode::InvalidArgument, concat("process set ", set, " has been removed"));
}

void RuntimeLoop::take(Submission&& submission) {
  const auto runner = runners_.find(submission.set);
  if (runner == runners_.end() || removals_.contains(submission.set)) {
    std::shared_ptr<HandleState> handle = std::move(submission.handle);
    const uint32_t set = submission.set;
    reaper_->add(std::move(submission));
    return finish(handle, removed(set));
  }
  runner->second->take(std::move(submission));
}

void RuntimeLoop::take(AddSetCall& add) {
  try {
    if (std::binary_search(add.ranks.begin(), add.ranks.end(), topology_.rank)) {
      if (make_set_ == nullptr) {
        throw Error(ErrorCode::Config, "this job can't make process sets");
      }
      add_runner(add.set, add.ranks, make_set_(add.ranks));
      runners_[add.set]->set_time(Clock::now().time_since_epoch().count());
    }
    newest_set_ = std::max(newest_set_, add.set);
    finish(add.handle, std::nullopt);
  } catch (...) {
    const Error cause = current_error();
    const Error error(cause.code(), concat("rank ", topology_.rank, ": process set ", add.set,
                                           " can't be made: ", cause.what()));
    finish(add.handle, error);
    fail_all_sets(error);  // the other members may have it
  }
}

void RuntimeLoop::take(RemoveSetCall& remove) {
  const auto runner = runners_.find(remove.set);
  if (runner == runners_.end()) return finish(remove.handle, std::nullopt);
  removals_[remove.set] = std::move(remove.handle);
  runner->second->shut_down();
}

void RuntimeLoop::forget_removed_sets() {
  for (auto removal = removals_.begin(); removal != removals_.end();) {
    if (!runners_.at(removal->first)->over()) {
      ++removal;
      continue;
    }
    runners_.erase(removal->first);
    finish(removal->second, std::nullopt);
    removal = removals_.erase(removal);
  }
}

void RuntimeLoop::add_runner(uint32_t id, const std::vector<int>& ranks, SetResources resources) {
  SetRunner::Parts parts;
  parts.id = id;
  parts.me =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), topology_.rank) - ranks.begin());
  parts.ranks = ranks;
  parts.config = &config_;
  parts.resources = std::move(resources);
  parts.timeline = timeline_;
  parts.reaper = reaper_;
  parts.on_fatal = [this](const Error& error) {
    fatal_now_ = true;
    return set_fatal(error);
  };
  runners_[id] = std::make_unique<SetRunner>(std::move(parts));
}

bool RuntimeLoop::take_messages() {
  bool any = false;
  while (const std::optional<Transport::Message> message = transport_->receive()) {
    any = true;
    try {
      const uint32_t set = set_of(message->bytes);
      const auto runner = runners_.find(set);
      if (runner != runners_.end()) {
        runner->second->receive(message->from, message->bytes);
      } else if (set > newest_set_) {
        throw Error(ErrorCode::Internal,
                    concat("it is about process set ", set, ", which is not known here"));
      }  // else: it was sent before the set was removed
    } catch (const Error& error) {
      fail_all_sets(
          Error(error.code(), concat("message from rank ", message->from, ": ", error.what())));
    }
  }
  return any;
}

void RuntimeLoop::note_stalls() {
  std::string text;
  for (const auto& [id, runner] : runners_) {
    if (runner->stall_text().empty()) continue;
    text += concat(text.empty() ? "" : "; ",
                   id == kWorldSet ? "" : concat("process set ", id, ": "), runner->stall_text());
  }
  if (text == door_.stall_report) return;  // only this thread writes it
  const std::lock_guard lock(door_.mutex);
  door_.stall_report = std::move(text);
}

bool RuntimeLoop::all_over() const {
  return shut_down_ && std::all_of(runners_.begin(), runners_.end(),
                                   [](const auto& entry) { return entry.second->over(); });
}

Error RuntimeLoop::set_fatal(const Error& error) {
  if (door_.fatal != nullptr) return *door_.fatal;  // only this thread writes it
  auto fatal = std::make_shared<const Error>(error);
  door_.queue.close(fatal);
  {
    const std::lock_guard lock(door_.mutex);
    door_.fatal = std::move(fatal);
  }
  attempt([&] { log(LogLevel::Error, error.what()); });
  return error;
}

// A set that has ended takes no error any more, so one set may not speak for all.
void RuntimeLoop::fail_all_sets(const Error& error) {
  for (auto& [id, runner] : runners_) runner->fail(error);
}

Error RuntimeLoop::failure_of_turn() const noexcept {
  try {
    const Error cause = current_error();
    return Error(cause.code(),
                 concat("rank ", topology_.rank, ": its runtime failed: ", cause.what()));
  } catch (...) {
    return out_of_memory_;
  }
}

void RuntimeLoop::end_job(const Error& error) noexcept {
  attempt([&] { (void)set_fatal(error); });
  const Error first = door_.fatal != nullptr ? *door_.fatal : error;  // only this thread writes it
  attempt([&] { tell_all_ranks(first); });
  end_all(first);
}

// In the set of all ranks, which takes it even after its Bye.
void RuntimeLoop::tell_all_ranks(const Error& error) {
  Envelope envelope;
  envelope.set = kWorldSet;
  envelope.items.emplace_back(Abort{error.code(), error.what()});
  const std::vector<std::byte> bytes = encode(envelope);
  for (int rank = 0; rank < topology_.size; ++rank) {
    if (rank != topology_.rank) attempt([&] { transport_->send(rank, bytes); });
  }
}

void RuntimeLoop::end_all(const Error& error) noexcept {
  attempt([&] { (void)set_fatal(error); });
  for (auto& entry : runners_) attempt([&] { entry.second->end_all(error); });
  for (auto& removal : removals_) finish(removal.second, error);
  removals_.clear();
  finish_calls(error);
  ended_ = true;
}

// The calls of this turn that nobody has taken yet, and those that wait in the queue.
void RuntimeLoop::finish_calls(const Error& error) noexcept {
  const auto end = [&](std::vector<Call>& calls) {
    for (Call& call : calls) {
      std::visit(Overloaded{
                     [&](Submission& submission) {
                       std::shared_ptr<HandleState> handle = std::move(submission.handle);
                       reaper_->add(std::move(submission));
                       finish(handle, error);
                     },
                     [](Refusal&) {},
                     [](ShutdownCall&) {},
                     [&](auto& waiting) { finish(waiting.handle, error); },
                 },
                 call);
    }
    calls.clear();
  };
  end(calls_);
  door_.queue.drain(calls_);
  end(calls_);
}

bool RuntimeLoop::past_deadline() const {
  return door_.leaving && Clock::now().time_since_epoch().count() >= door_.deadline_ns;
}

bool RuntimeLoop::at_rest() const {
  return std::all_of(runners_.begin(), runners_.end(),
                     [](const auto& entry) { return entry.second->at_rest(); });
}

std::chrono::nanoseconds RuntimeLoop::pause() {
  polls_ = transport_->must_poll();
  bool coordinator = false;
  for (const auto& [id, runner] : runners_) {
    polls_ = polls_ || runner->pace() == Executor::Pace::Polling;
    coordinator = coordinator || runner->is_coordinator();
  }
  std::chrono::nanoseconds pause = pacer_.pause(polls_, at_rest(), coordinator);
  if (door_.leaving) {
    const Nanos left = door_.deadline_ns - Clock::now().time_since_epoch().count();
    pause = std::clamp(std::chrono::nanoseconds(left), std::chrono::nanoseconds(0), pause);
  }
  return pause;
}

bool RuntimeLoop::must_be_stepped() const {
  if (transport_->must_poll() && !at_rest()) return true;
  return std::any_of(runners_.begin(), runners_.end(), [](const auto& entry) {
    return entry.second->pace() == Executor::Pace::Polling ||
           entry.second->pace() == Executor::Pace::Busy;
  });
}

void RuntimeLoop::rested() noexcept {
  try {
    if (pacer_.long_wait() && anybody_waits()) look_for_the_dead();
    if (past_deadline()) end_at_deadline();
  } catch (...) {
    end_job(failure_of_turn());
  }
}

bool RuntimeLoop::anybody_waits() const {
  return std::any_of(runners_.begin(), runners_.end(),
                     [](const auto& entry) { return entry.second->waits(); });
}

void RuntimeLoop::look_for_the_dead() {
  const std::vector<Transport::DeadPeer> dead = transport_->dead_peers();
  if (dead.empty()) return;
  // Its last message may be an Abort that names another rank, or Bye: that counts more than its
  // death.
  if (take_messages()) return;
  const Nanos now = Clock::now().time_since_epoch().count();
  for (const Transport::DeadPeer& peer : dead) dead_.try_emplace(peer.rank, Death{peer.text, now});
  for (auto& [id, runner] : runners_) judge_the_dead(*runner, now);
}

// A set ends only when nothing runs on any of its members. So a member that is gone while something
// is under way here has died; but one that is gone while this rank only waits for Bye may have had
// its own a moment before.
void RuntimeLoop::judge_the_dead(SetRunner& runner, Nanos now) {
  constexpr Nanos grace = 2'000'000'000;
  if (!runner.waits()) return;
  for (const auto& [rank, death] : dead_) {
    if (!runner.has_member(rank) || (runner.at_rest() && now - death.seen < grace)) continue;
    return runner.fail(error_of(death));
  }
}

Error RuntimeLoop::error_of(const Death& death) {
  return Error(ErrorCode::PeerDead, concat(death.who, " has died"));
}

void RuntimeLoop::end_at_deadline() {
  for (const auto& [rank, death] : dead_) {
    const bool awaited = std::any_of(runners_.begin(), runners_.end(), [&](const auto& entry) {
      return entry.second->waits() && entry.second->has_member(rank);
    });
    if (awaited) return end_job(error_of(death));
  }
  const std::string& stalled = door_.stall_report;
  const std::string missing = stalled.empty() ? "" : concat(" (", stalled, ")");
  farewell_ = concat("shutdown(): not all ranks have ended within the time limit", missing);
  end_job(Error(ErrorCode::Timeout, concat("rank ", topology_.rank, " has ended: ", farewell_)));
}

}  // namespace horon::core
