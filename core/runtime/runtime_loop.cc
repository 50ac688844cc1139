#include "horon/core/runtime/runtime_loop.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "horon/core/base/log.h"
#include "horon/core/base/prompt_thread.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::core {
namespace {

void finish(const std::shared_ptr<HandleState>& handle, std::optional<Error> error) {
  Outcome outcome;
  outcome.error = std::move(error);
  handle->finish(std::move(outcome));
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
      door_(door) {
  add_runner(kWorldSet, all_ranks(topology_), std::move(parts.world));
}

void RuntimeLoop::run() {
  make_thread_prompt();
  try {
    while (!ended_) turn();
    say_goodbye();
  } catch (const Error& error) {
    end_all(error);
  }
  runners_.clear();
}

void RuntimeLoop::say_goodbye() {
  const auto limit = Clock::now() + std::chrono::seconds(1);
  while (!transport_->flushed() && Clock::now() < limit) (void)transport_->receive();
}

void RuntimeLoop::turn() {
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
  if (fatal_now_) return end_all(*door_.fatal);
  for (auto& [id, runner] : runners_) news = runner->work() || news;
  forget_removed_sets();
  if (all_over()) ended_ = true;
  if (ended_ || news) {
    pacer_.news();
    return;
  }
  rest();
}

bool RuntimeLoop::take_calls() {
  calls_.clear();
  door_.queue.drain(calls_);
  for (Call& call : calls_) {
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
                     leaving_all_ = true;
                     for (auto& [id, runner] : runners_) runner->leave();
                   },
               },
               call);
  }
  return !calls_.empty();
}

Error RuntimeLoop::removed(uint32_t set) {
  return Error(ErrorCode::InvalidArgument, concat("process set ", set, " has been removed"));
}

void RuntimeLoop::take(Submission submission) {
  const auto runner = runners_.find(submission.set);
  if (runner == runners_.end() || removals_.contains(submission.set)) {
    return finish(submission.handle, removed(submission.set));
  }
  runner->second->take(std::move(submission));
}

void RuntimeLoop::take(const AddSetCall& add) {
  try {
    if (std::binary_search(add.ranks.begin(), add.ranks.end(), topology_.rank)) {
      HORON_CHECK(make_set_ != nullptr, "nobody can make process sets here");
      add_runner(add.set, add.ranks, make_set_(add.ranks));
      runners_[add.set]->set_time(Clock::now().time_since_epoch().count());
    }
    newest_set_ = std::max(newest_set_, add.set);
    finish(add.handle, std::nullopt);
  } catch (const Error& error) {
    finish(add.handle, error);
    runners_.at(kWorldSet)->fail(error);  // the other members may have it
  }
}

void RuntimeLoop::take(const RemoveSetCall& remove) {
  const auto runner = runners_.find(remove.set);
  if (runner == runners_.end()) return finish(remove.handle, std::nullopt);
  runner->second->leave();
  removals_[remove.set] = remove.handle;
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
  parts.on_fatal = [this](const Error& error) {
    set_fatal(error);
    fatal_now_ = true;
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
      }  // else: a last word about a set that has been removed
    } catch (const Error& error) {
      runners_.at(kWorldSet)->fail(
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
  return leaving_all_ && std::all_of(runners_.begin(), runners_.end(),
                                     [](const auto& entry) { return entry.second->over(); });
}

void RuntimeLoop::set_fatal(const Error& error) {
  {
    const std::lock_guard lock(door_.mutex);
    if (door_.fatal != nullptr) return;
    door_.fatal = std::make_shared<const Error>(error);
  }
  log(LogLevel::Error, error.what());
  door_.queue.close(error);
}

void RuntimeLoop::end_all(const Error& error) {
  set_fatal(error);
  for (auto& [id, runner] : runners_) runner->end_all(error);
  for (auto& [id, handle] : removals_) finish(handle, error);
  removals_.clear();
  calls_.clear();
  door_.queue.drain(calls_);
  for (Call& call : calls_) {
    std::visit(Overloaded{
                   [&](Submission& submission) { finish(submission.handle, error); },
                   [&](JoinCall& join) { finish(join.handle, error); },
                   [&](AddSetCall& add) { finish(add.handle, error); },
                   [&](RemoveSetCall& remove) { finish(remove.handle, error); },
                   [](const auto&) {},
               },
               call);
  }
  calls_.clear();
  ended_ = true;
}

bool RuntimeLoop::past_deadline() const {
  return door_.leaving && Clock::now().time_since_epoch().count() >= door_.deadline_ns;
}

bool RuntimeLoop::at_rest() const {
  return std::all_of(runners_.begin(), runners_.end(),
                     [](const auto& entry) { return entry.second->at_rest(); });
}

void RuntimeLoop::rest() {
  bool poll = transport_->must_poll();
  bool coordinator = false;
  for (const auto& [id, runner] : runners_) {
    poll = poll || runner->pace() == Executor::Pace::Polling;
    coordinator = coordinator || runner->is_coordinator();
  }
  transport_->wait(pacer_.pause(poll, at_rest(), coordinator));
  if ((!at_rest() || door_.leaving) && pacer_.long_wait()) look_for_the_dead();
  if (past_deadline()) leave_alone();
}

void RuntimeLoop::look_for_the_dead() {
  const std::optional<std::string> dead = transport_->dead_peer();
  if (!dead) return;
  // While all ranks shut down, a peer that is gone may have had its Bye a moment before us.
  constexpr auto grace = std::chrono::seconds(2);
  if (at_rest()) {
    const int64_t soon = (Clock::now() + grace).time_since_epoch().count();
    door_.deadline_ns = std::min<int64_t>(door_.deadline_ns, soon);
  } else {
    runners_.at(kWorldSet)->fail(Error(ErrorCode::PeerDead, concat(*dead, " has died")));
  }
}

void RuntimeLoop::leave_alone() {
  const std::string& stalled = door_.stall_report;
  const std::string missing = stalled.empty() ? "" : concat(" (", stalled, ")");
  farewell_ = concat("shutdown(): not all ranks have called it within the time limit", missing);
  log(LogLevel::Warn, farewell_);
  end_all(Error(ErrorCode::Timeout, farewell_));
}

}  // namespace horon::core
