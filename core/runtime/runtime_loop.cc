#include "horon/core/runtime/runtime_loop.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/current_error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/log.h"
#include "horon/core/base/overloaded.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/core/runtime/reaper.h"
#include "horon/core/runtime/set_facts.h"

namespace horon::core {
namespace {

// How often a rank that does not sleep looks for peers that have died.
constexpr Nanos kLookForTheDead = 100'000'000;

}  // namespace

RuntimeLoop::RuntimeLoop(Parts parts, RuntimeDoor& door)
    : config_(*parts.config),
      topology_(*parts.topology),
      timeline_(std::move(parts.timeline)),
      transport_(parts.transport),
      make_set_(std::move(parts.make_set)),
      make_pair_(std::move(parts.make_pair)),
      reaper_(parts.reaper),
      out_of_memory_(std::make_shared<const Error>(
          ErrorCode::OperationFailed, concat("rank ", topology_.rank, " is out of memory"))),
      abort_(topology_, *out_of_memory_, *transport_),
      door_(door) {
  busy_.set_time(Clock::now().time_since_epoch().count());
  add_runner(kWorldSet, all_ranks(topology_.size), std::move(parts.world));
}

bool RuntimeLoop::turn() noexcept {
  try {
    return try_turn();
  } catch (...) {
    end_job(failure_of_turn());
    return true;
  }
}

bool RuntimeLoop::try_turn() {
  const Nanos now = Clock::now().time_since_epoch().count();
  forgive_pause(busy_.time(), now);
  busy_.set_time(now);
  bool news = take_calls();
  news = take_messages() || news;
  if (shut_down_) leave_world();
  look_around(now, /*in_haste=*/news);
  news = decide() || news;
  if (!open_.idle()) news = settle_open_receives(now) || news;
  record_statistics(now);
  if (fatal_now_) {
    end_all(*door_.fatal);  // the controllers have told the other ranks
    return true;
  }
  for (size_t i = 0; i < busy_.count(); ++i) news = busy_[i].work() || news;
  const bool some_are_over =
      !removals_.empty() && std::any_of(busy_.list().begin(), busy_.list().end(),
                                        [](const SetRunner* runner) { return runner->over(); });
  busy_.drop_idle();
  if (some_are_over) forget_removed_sets();
  if (all_over()) ended_ = true;
  // In the turns too: others may keep this rank so busy that it never sleeps.
  if (!ended_ && past_deadline(now)) act_at_deadline();
  if (!ended_ && now >= next_look_for_the_dead_) {
    const bool again = anybody_waits() && look_for_the_dead();
    if (!again) next_look_for_the_dead_ = now + kLookForTheDead;
    news = news || again;
  }
  if (ended_ || news) pacer_.news();
  return ended_ || news;
}

// A set that rests only has to act on time: the coordinator reports who has left or joined and who
// has not, and a member that is asked whether it lives must answer in time. Neither is urgent.
void RuntimeLoop::look_around(Nanos now, bool in_haste) {
  for (size_t left = round_.due(runners_.size(), now, in_haste); left > 0; --left) {
    auto next = runners_.upper_bound(looked_at_);
    if (next == runners_.end()) next = runners_.begin();
    looked_at_ = next->first;
    next->second->stir();
  }
}

bool RuntimeLoop::decide() {
  bool news = false;
  bool stalls_changed = false;
  const auto step = [&](SetRunner& runner) {
    news = runner.decide(outbox_) || news;
    stalls_changed = stalls_changed || runner.has_new_stall_text();
  };
  for (size_t i = 0; i < busy_.count(); ++i) step(busy_[i]);
  if (fatal_now_) {
    // The members of the other sets must hear of it too.
    for (auto& [id, runner] : runners_) {
      runner->fail(*door_.fatal);
      step(*runner);
    }
  }
  for (Outgoing& message : outbox_) transport_->send(message.to, std::move(message.bytes));
  outbox_.clear();
  if (stalls_changed) note_stalls();
  return news;
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
                   SetRunner* const runner = runner_for_call(refusal.set);
                   if (runner != nullptr) runner->refuse(refusal);
                   open_.renew(refusal.set);
                 },
                 [&](OpenCall& open) {
                   open_.add(std::move(open.receive), std::move(open.submission), busy_.time());
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
                   open_.finish_all(*door_.shut_down);
                   for (auto& [id, runner] : runners_) {
                     if (id != kWorldSet) runner->shut_down();
                   }
                 },
                 [&](FailCall& fail) { fail_all_sets(fail.error); },
             },
             call);
}

Error RuntimeLoop::removed(uint32_t set) {
  return Error(ErrorCode::InvalidArgument, concat(set_text(set), " has been removed"));
}

void RuntimeLoop::take(Submission&& submission) {
  const uint32_t set = submission.set;
  SetRunner* const runner = runner_for_call(set);
  if (runner == nullptr || removals_.contains(set)) {
    // What needs memory comes first: a submission that is still in the call ends with the job.
    const Error error = shut_down_ ? *door_.shut_down : removed(set);
    std::shared_ptr<HandleState> handle = std::move(submission.handle);
    reaper_->add(std::move(submission));
    return finish(handle, error);
  }
  runner->take(std::move(submission));
  open_.renew(set);
}

SetRunner* RuntimeLoop::find_runner(uint32_t set) {
  const auto known = runners_.find(set);
  if (known != runners_.end()) return known->second.get();
  const std::vector<int> ranks = members_of_pair(set, topology_.size);
  if (make_pair_ == nullptr || !std::binary_search(ranks.begin(), ranks.end(), topology_.rank)) {
    return nullptr;
  }
  try {
    add_runner(set, ranks, make_pair_(ranks));
  } catch (const Error& error) {
    throw Error(error.code(), concat("rank ", topology_.rank,
                                     " could not get ready for messages "
                                     "between ranks ",
                                     ranks.front(), " and ", ranks.back(), ": ", error.what()));
  }
  SetRunner* const runner = runners_.at(set).get();
  if (shut_down_) runner->shut_down();
  return runner;
}

SetRunner* RuntimeLoop::runner_for_call(uint32_t set) {
  const bool is_new = !runners_.contains(set);
  // Too late: this rank may have said Shutdown in the world already, see leave_world().
  if (is_new && shut_down_) return nullptr;
  SetRunner* const runner = find_runner(set);
  if (is_new && runner != nullptr) {
    runner->greet();
    greeted_.insert(set);
  }
  return runner;
}

// Waits until the other rank of each new pair has answered greet(). All ranks end when all have
// left the world, and a rank that hears of a pair later can't say Shutdown in it any more.
void RuntimeLoop::leave_world() {
  if (left_world_ || !greeted_.empty()) return;
  left_world_ = true;
  runners_.at(kWorldSet)->shut_down();
}

void RuntimeLoop::take(AddSetCall& add) {
  // This rank's Shutdown has been sent, so it could never say Shutdown in the new set.
  if (shut_down_) return finish(add.handle, *door_.shut_down);
  std::shared_ptr<void> made;
  try {
    if (std::binary_search(add.ranks.begin(), add.ranks.end(), topology_.rank)) {
      if (make_set_ == nullptr) {
        throw Error(ErrorCode::Config, "this runtime was made without process sets");
      }
      SetResources resources = make_set_(add.ranks);
      made = resources.keep_alive;
      *add.facts = SetFacts::of(add.ranks, resources);
      add_runner(add.set, add.ranks, std::move(resources));
    }
    if (add.set < kFirstNumberedSet) newest_set_ = std::max(newest_set_, add.set);
    finish(add.handle, std::nullopt);
  } catch (...) {
    keep_for_ever(std::move(made));  // freeing it may be a call of all members
    const Error cause = current_error();
    const Error error = that_ends_the_job(
        Error(cause.code(), concat("rank ", topology_.rank, ": ", set_text(add.set),
                                   " can't be made: ", cause.what())));
    finish(add.handle, error);
    fail_all_sets(error);  // other members may have made the set, and would wait for this rank
  }
}

void RuntimeLoop::take(RemoveSetCall& remove) {
  const auto runner = runners_.find(remove.set);
  if (runner == runners_.end()) {
    if (remove.handle != nullptr) finish(remove.handle, std::nullopt);
    return;
  }
  auto& waiting = removals_[remove.set];
  if (remove.handle == nullptr) return runner->second->leave();
  waiting.push_back(std::move(remove.handle));
  runner->second->shut_down();
}

void RuntimeLoop::forget_removed_sets() {
  for (auto removal = removals_.begin(); removal != removals_.end();) {
    const SetRunner& runner = *runners_.at(removal->first);
    if (!runner.over()) {
      ++removal;
      continue;
    }
    busy_.remove(runner);
    if (runner.is_coordinator()) --coordinated_;
    runners_.erase(removal->first);
    if (removal->first >= kFirstNumberedSet) removed_.insert(removal->first);
    for (auto& waiting : removal->second) finish(waiting, std::nullopt);
    removal = removals_.erase(removal);
  }
}

void RuntimeLoop::add_runner(uint32_t id, const std::vector<int>& ranks, SetResources resources) {
  SetRunner::Parts parts;
  parts.id = id;
  parts.me =
      static_cast<int>(std::find(ranks.begin(), ranks.end(), topology_.rank) - ranks.begin());
  parts.ranks = ranks;
  parts.host_of = restrict_to_members(topology_, ranks).host_of;
  parts.config = &config_;
  parts.resources = std::move(resources);
  parts.timeline = timeline_;
  parts.reaper = reaper_;
  parts.statistics = &door_.statistics;
  parts.busy = &busy_;
  parts.open = &open_;
  parts.take_messages = [this] {
    (void)take_messages();
    return error_of_any_set();
  };
  parts.on_fatal = [this](const Error& error) {
    fatal_now_ = true;
    return set_fatal(error);
  };
  // What the set runs on may have taken long to make: its questions to others begin now.
  busy_.set_time(Clock::now().time_since_epoch().count());
  busy_.reserve(runners_.size() + 1);
  SetRunner& runner = *(runners_[id] = std::make_unique<SetRunner>(std::move(parts)));
  if (runner.is_coordinator()) ++coordinated_;
  runner.stir();
}

bool RuntimeLoop::take_messages() {
  bool any = false;
  while (const std::optional<Transport::Message> message = transport_->receive()) {
    any = true;
    try {
      if (is_farewell(message->bytes)) {
        gone_.insert(message->from);
        continue;
      }
      const uint32_t set = set_of(message->bytes);
      SetRunner* const runner = find_runner(set);
      if (runner != nullptr) {
        greeted_.erase(set);
        runner->receive(message->from, message->bytes);
      } else if (!was_removed(set)) {
        take_from_unknown_set(set, message->bytes);
      }  // else: it was sent before the set was removed
    } catch (const Error& error) {
      fail_all_sets(
          Error(error.code(), concat("message from rank ", message->from, ": ", error.what())));
    }
  }
  return any;
}

bool RuntimeLoop::was_removed(uint32_t set) const {
  return set < kFirstNumberedSet ? set <= newest_set_ : removed_.contains(set);
}

bool RuntimeLoop::all_over() const {
  return shut_down_ && std::all_of(runners_.begin(), runners_.end(),
                                   [](const auto& entry) { return entry.second->over(); });
}

std::chrono::nanoseconds RuntimeLoop::pause() {
  polls_ = transport_->must_poll();
  bool drives = false;
  for (const SetRunner* const runner : busy_.list()) {
    drives = drives || runner->pace() == Executor::Pace::Driving;
    polls_ = polls_ || drives || runner->pace() == Executor::Pace::Polling;
  }
  const Pacer::Need need = drives   ? Pacer::Need::Drive
                           : polls_ ? Pacer::Need::Look
                                    : Pacer::Need::Ring;
  std::chrono::nanoseconds pause = pacer_.pause(need, busy_.all_at_rest(), coordinated_ > 0);
  if (door_.leaving) {
    const Nanos left = door_.deadline_ns - Clock::now().time_since_epoch().count();
    pause = std::clamp(std::chrono::nanoseconds(left), std::chrono::nanoseconds(0), pause);
  }
  return pause;
}

WaitPolicy RuntimeLoop::wait_policy() const noexcept {
  WaitPolicy policy = transport_->wait_policy();
  policy.spin = std::max(policy.spin - pacer_.waited(), std::chrono::nanoseconds(0));
  if (pacer_.long_wait()) policy.look.yields = 0;
  return policy;
}

bool RuntimeLoop::must_be_stepped() noexcept {
  try {
    if (must_poll() && (!busy_.all_at_rest() || !transport_->flushed())) return true;
  } catch (...) {
    end_job(failure_of_turn());
    return true;
  }
  return std::any_of(busy_.list().begin(), busy_.list().end(), [](const SetRunner* runner) {
    return runner->pace() == Executor::Pace::Polling || runner->pace() == Executor::Pace::Driving ||
           runner->pace() == Executor::Pace::Busy;
  });
}

}  // namespace horon::core
