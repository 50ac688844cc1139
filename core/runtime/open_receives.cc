#include "horon/core/runtime/open_receives.h"

#include <algorithm>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/core/runtime/reaper.h"
#include "horon/core/runtime/set_runner.h"

namespace horon::core {
namespace {

constexpr Nanos kOneSecond = 1'000'000'000;
constexpr Nanos kLookEvery = kOneSecond / 4;
constexpr Nanos kGapOfWarningsMax = 600 * kOneSecond;

}  // namespace

OpenReceives::OpenReceives(const Config& config, int rank, Reaper* reaper,
                           std::function<SetRunner*(uint32_t set)> runner_of)
    : rank_(rank),
      warn_after_(static_cast<Nanos>(config.stall_warn_s * 1e9)),
      abort_after_(static_cast<Nanos>(config.stall_abort_s * 1e9)),
      reaper_(reaper),
      runner_of_(std::move(runner_of)) {}

void OpenReceives::add(std::shared_ptr<OpenReceive> open, Submission&& submission, Nanos now) {
  const size_t sources = open->sources();
  Receive& added = receives_.emplace_back();
  added.submission = std::move(submission);  // from here on finish_all() ends it
  added.open = std::move(open);
  const auto receive = std::prev(receives_.end());
  if (closed_) return fail(receive, *closed_);
  added.since = now;
  added.next_warning = now + warn_after_;
  added.gone.resize(sources);
  added.runners.reserve(sources);
  for (size_t source = 0; source < sources; ++source) {
    SetRunner* const runner = runner_of_(added.open->set_of(source));
    runner->expect_found(1);
    added.runners.push_back(runner);
  }
  for (size_t source = 0; source < sources; ++source) {
    if (advance(receive, source)) return;
  }
}

void OpenReceives::note(uint32_t set, const Found& found) {
  const auto question = questions_.find({set, found.name});
  if (question == questions_.end()) return;  // it was asked twice, and the answer used
  question->second.state = found.gone ? Question::State::Gone : Question::State::Found;
  renew(set);
}

void OpenReceives::renew(uint32_t set) {
  if (!receives_.empty() && is_pair_set(set)) touched_.insert(set);
}

bool OpenReceives::settle() {
  bool any = false;
  for (const uint32_t set : std::exchange(touched_, {})) {
    for (auto next = receives_.begin(); next != receives_.end();) {
      const auto receive = next++;
      for (size_t source = 0; source < receive->runners.size(); ++source) {
        if (receive->open->set_of(source) != set) continue;
        any = advance(receive, source) || any;
        break;
      }
    }
  }
  return any;
}

bool OpenReceives::advance(std::list<Receive>::iterator receive, size_t source) {
  OpenReceive& open = *receive->open;
  try {
    for (;;) {
      const OpenReceive::Next next = open.next(source);
      const auto [known, fresh] = questions_.try_emplace({open.set_of(source), next.name});
      Question& question = known->second;
      if (fresh || question.number != next.number) {
        question = {next.number, Question::State::Asked};
        receive->runners[source]->seek(next.name);
      }
      receive->gone[source] = question.state == Question::State::Gone;
      if (question.state != Question::State::Found) break;
      questions_.erase(known);
      if (!open.take(source, next.number, receive->submission.handle)) continue;
      start(receive, source, next.name);
      return true;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::Limit) {
      touched_.insert(open.set_of(source));  // in the next turn there may be room
      return false;
    }
    fail(receive, error);
    return true;
  }
  const std::vector<bool>& gone = receive->gone;
  if (std::find(gone.begin(), gone.end(), false) != gone.end()) return false;
  fail(receive, Error(ErrorCode::RankLeft,
                      concat("rank ", rank_, " waits for ", open.text(),
                             ", and all of these ranks have shut down without sending one")));
  return true;
}

void OpenReceives::start(std::list<Receive>::iterator receive, size_t source,
                         const std::string& name) {
  receive->open->aim(source, name, receive->submission);
  expect(*receive, -1);
  receive->runners[source]->take(std::move(receive->submission));
  receives_.erase(receive);
  fewer_ = true;
}

void OpenReceives::fail(std::list<Receive>::iterator receive, const Error& error) noexcept {
  expect(*receive, -1);
  std::shared_ptr<HandleState> handle = std::move(receive->submission.handle);
  reaper_->add(std::move(receive->submission));
  receives_.erase(receive);
  fewer_ = true;
  finish(handle, error);
}

void OpenReceives::expect(const Receive& receive, int change) {
  for (SetRunner* const runner : receive.runners) runner->expect_found(change);
}

void OpenReceives::finish_all(const Error& error) noexcept {
  closed_ = error;
  while (!receives_.empty()) fail(receives_.begin(), error);
}

std::string OpenReceives::text_of(const Receive& receive, Nanos now) const {
  return concat("rank ", rank_, " waits for ", receive.open->text(), ", and none has come in ",
                (now - receive.since) / kOneSecond, " s");
}

// If this process stood still since the turn before, that time counts for no receive. Those that
// are newer than that turn have come since.
void OpenReceives::forgive_gap(Nanos now) {
  const Nanos turn_before = std::exchange(turned_at_, now);
  const Nanos gap = now - turn_before;
  if (gap <= 3 * kOneSecond) return;
  for (Receive& receive : receives_) {
    if (receive.since > turn_before) continue;
    receive.since += gap;
    receive.next_warning += gap;
  }
}

bool OpenReceives::look(Nanos now) {
  forgive_gap(now);
  if (now - looked_at_ < kLookEvery && !std::exchange(fewer_, false)) return false;
  looked_at_ = now;
  std::string text;
  for (Receive& receive : receives_) {
    const Nanos age = now - receive.since;
    if (warn_after_ <= 0 || age < std::min(warn_after_, kOneSecond)) continue;
    const std::string one = text_of(receive, now);
    text += concat(text.empty() ? "" : "; ", one);
    if (now < receive.next_warning) continue;
    receive.next_warning = now + std::min(2 * std::max(age, warn_after_), kGapOfWarningsMax);
    log(LogLevel::Warn, concat("stalled: ", one));
  }
  return std::exchange(stall_text_, text) != text;
}

std::optional<Error> OpenReceives::overdue(Nanos now) const {
  if (abort_after_ <= 0 || receives_.empty() || now - receives_.front().since < abort_after_) {
    return std::nullopt;
  }
  return Error(ErrorCode::Stall,
               concat(text_of(receives_.front(), now), " (HORON_STALL_ABORT_S ended the job)"));
}

}  // namespace horon::core
