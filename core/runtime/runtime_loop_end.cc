// How a job ends: the last messages, errors that end it on all ranks, deaths, the deadline of
// shutdown().
#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/overloaded.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/core/runtime/reaper.h"
#include "horon/core/runtime/runtime_loop.h"

namespace horon::core {
namespace {

// For all sets together. With live peers an abort takes milliseconds; with a dead one it may never
// return.
constexpr std::chrono::seconds kAbortMax{5};
// The least time between two looks for peers that have died, in a long wait of shorter sleeps.
constexpr Nanos kLookAfterASleep = 1'000'000;
// The loop sleeps for less, so after a longer pause between two turns this process stood still.
constexpr Nanos kStoodStill = 3'000'000'000;
// A shorter limit of shutdown() would have this rank ask again and again whether it is over.
constexpr Nanos kWaitOnMin = 1'000'000'000;

// Takes one step of ending a job. An exception does not keep the caller from the next steps.
template <class Action>
void attempt(const Action& action) noexcept {
  try {
    action();
  } catch (...) {  // a consequence: the first cause has been sent or logged
  }
}

}  // namespace

void RuntimeLoop::close() noexcept {
  flush_messages();
  // The program's other threads may have submitted between the last turn and here.
  door_.queue.close(door_.shut_down);
  finish_calls(*door_.shut_down);
  busy_.clear();
  attempt([&] { runners_.clear(); });
  if (records(timeline_)) attempt([&] { record_statistics(); });
}

void RuntimeLoop::end_from_within(const Error& error) noexcept {
  end_job(error);
  flush_messages();
}

void RuntimeLoop::flush_messages() {
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  const auto limit = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < limit) {
    const bool told = abort_.done();
    try {
      if (transport_->flushed() && told) return;
      note_farewells();
      if (!told) pause();  // another thread may give memory back
    } catch (...) {        // one of the two transports may be broken; the other must still send
      pause();
    }
  }
}

Error RuntimeLoop::set_fatal(const Error& error) noexcept {
  if (door_.fatal != nullptr) return *door_.fatal;  // only this thread writes it
  std::shared_ptr<const Error> fatal = out_of_memory_;
  attempt([&] { fatal = std::make_shared<const Error>(that_ends_the_job(error)); });
  {
    const std::lock_guard lock(door_.mutex);
    door_.fatal = fatal;
  }
  door_.queue.close(fatal);  // whoever is refused finds fatal_error() set
  attempt([&] { log(LogLevel::Error, fatal->what()); });
  return *fatal;
}

// Takes the messages that come after the end, of which only farewells count.
void RuntimeLoop::note_farewells() {
  while (const std::optional<Transport::Message> message = transport_->receive()) {
    if (is_farewell(message->bytes)) gone_.insert(message->from);
  }
}

void RuntimeLoop::wait_for_farewells(Clock::time_point limit) noexcept {
  // One of the two transports may be broken: the others are told, and heard, all the same.
  for (int peer = 0; peer < topology_.size; ++peer) {
    if (peer != topology_.rank) attempt([&] { transport_->send(peer, farewell()); });
  }
  bool over = false;
  while (!over && Clock::now() < limit) {
    attempt([&] { note_farewells(); });
    attempt([&] {
      for (const Transport::DeadPeer& peer : transport_->dead_peers()) gone_.insert(peer.rank);
      over = gone_.size() + 1 >= static_cast<size_t>(topology_.size) && transport_->flushed();
    });
    if (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// A set that has ended ignores errors, so every set is told.
void RuntimeLoop::fail_all_sets(const Error& error) {
  for (auto& [id, runner] : runners_) runner->fail(error);
}

void RuntimeLoop::take_from_unknown_set(uint32_t set, std::span<const std::byte> bytes) {
  const Envelope envelope = decode(bytes);
  for (const Item& item : envelope.items) {
    const auto* const abort = std::get_if<Abort>(&item);
    if (abort != nullptr) return fail_all_sets(Error(abort->code, abort->text));
  }
  throw Error(ErrorCode::Internal,
              concat("it is about ", set_text(set), ", which is not known here"));
}

std::optional<Error> RuntimeLoop::error_of_any_set() const {
  for (const auto& [id, runner] : runners_) {
    if (runner->fatal()) return runner->fatal();
  }
  return std::nullopt;
}

Error RuntimeLoop::failure_of_turn() const noexcept {
  try {
    const Error cause = current_error();
    return Error(cause.code(),
                 concat("rank ", topology_.rank, ": its runtime failed: ", cause.what()));
  } catch (...) {
    return *out_of_memory_;
  }
}

void RuntimeLoop::end_job(const Error& error) noexcept {
  const Error first = set_fatal(error);
  abort_.send(first);
  end_all(first);
}

void RuntimeLoop::end_all(const Error& error) noexcept {
  for (auto& entry : runners_) attempt([&] { entry.second->finish_all(error); });
  for (auto& [set, waiting] : removals_) {
    for (auto& handle : waiting) finish(handle, error);
  }
  removals_.clear();
  open_.finish_all(error);
  finish_calls(error);
  // Tell the peers first: an abort here (of NCCL) may wait until the peers abort too.
  attempt([&] { flush_messages(); });
  for (auto& entry : runners_) entry.second->abandon_all();
  const auto limit = Clock::now() + kAbortMax;
  for (auto& entry : runners_) entry.second->finish_abort(limit);
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
                     [&](OpenCall& open) {
                       std::shared_ptr<HandleState> handle = std::move(open.submission.handle);
                       reaper_->add(std::move(open.submission));
                       finish(handle, error);
                     },
                     [](Refusal&) {},
                     [](ShutdownCall&) {},
                     [](FailCall&) {},
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

bool RuntimeLoop::past_deadline(Nanos now) const {
  return door_.leaving && now >= door_.deadline_ns;
}

// A job that was suspended goes on.
void RuntimeLoop::forgive_pause(Nanos before, Nanos now) {
  if (!door_.leaving || now - before <= kStoodStill) return;
  const Nanos begin = std::max(before, door_.deadline_ns - door_.limit_ns);
  if (begin < now) door_.deadline_ns += now - begin;
}

void RuntimeLoop::act_at_deadline() {
  const bool has_own_work = std::any_of(runners_.begin(), runners_.end(), [](const auto& entry) {
    return entry.second->has_own_work();
  });
  if (shut_down_ && !has_own_work) {
    wait_on();
  } else {
    end_at_deadline();
  }
}

// This rank waits on for ranks that have something else to do (a last checkpoint, an evaluation),
// as MPI_Finalize() does: a launcher would end them when this process goes. HORON_DEAD_AFTER_S
// finds ranks that do not answer. Ranks 0 and 1 log it, since one of them may be the late one.
void RuntimeLoop::wait_on() {
  const Nanos limit = std::max<Nanos>(door_.limit_ns, kWaitOnMin);
  door_.deadline_ns = Clock::now().time_since_epoch().count() + limit;
  // With no limit every rank is here at once, and the others mostly come within a moment.
  const bool at_once = door_.limit_ns == 0 && !std::exchange(waits_without_limit_, true);
  if (at_once || std::exchange(told_of_waiting_, true) || topology_.rank > 1) return;
  const std::string& missing = door_.stall_report;
  attempt([&] {
    log(LogLevel::Warn, concat("this rank is in shutdown() and waits for the others",
                               missing.empty() ? "" : concat(": ", missing)));
  });
}

bool RuntimeLoop::anybody_waits() const {
  return std::any_of(runners_.begin(), runners_.end(),
                     [](const auto& entry) { return entry.second->waits(); });
}

void RuntimeLoop::rested() noexcept {
  try {
    if (!pacer_.long_wait()) return;
    const Nanos now = Clock::now().time_since_epoch().count();
    if (now < next_look_after_a_sleep_) return;
    next_look_after_a_sleep_ = now + kLookAfterASleep;
    if (anybody_waits()) (void)look_for_the_dead();
  } catch (...) {
    end_job(failure_of_turn());
  }
}

bool RuntimeLoop::look_for_the_dead() {
  const std::vector<Transport::DeadPeer> dead = transport_->dead_peers();
  if (dead.empty()) return false;
  // The last message of a dead peer may be an Abort that names another rank, or Bye: that counts
  // more than its death.
  if (take_messages()) return true;
  const Nanos now = Clock::now().time_since_epoch().count();
  for (const Transport::DeadPeer& peer : dead) dead_.try_emplace(peer.rank, Death{peer.text, now});
  for (auto& [id, runner] : runners_) judge_the_dead(*runner, now);
  return false;
}

// A set ends only when nothing runs on any of its members. So a member that is gone while something
// is under way here has died. One that is gone while this rank only waits for Bye may have received
// its own Bye a moment before.
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
    for (const auto& [id, runner] : runners_) {
      if (runner->waits() && runner->has_member(rank)) return end_job(error_of(death));
    }
  }
  const std::string& stalled = door_.stall_report;
  const std::string missing = stalled.empty() ? "" : concat(" (", stalled, ")");
  shutdown_report_ =
      concat("shutdown(): not all that was submitted has ended within the time limit, ",
             "HORON_SHUTDOWN_TIMEOUT_S", missing);
  end_job(
      Error(ErrorCode::Stall, concat("rank ", topology_.rank, " has ended: ", shutdown_report_)));
}

}  // namespace horon::core
