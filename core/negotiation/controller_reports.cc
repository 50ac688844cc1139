// What the controller of the coordinator tells people when it looks at the age of open entries, and
// what it does not count in their age.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/controller.h"

namespace horon::core {
namespace {

constexpr Nanos kWarningGapMax = 600'000'000'000;

}  // namespace

void Controller::tick_coordinator() {
  if (coordinator_->ids_are_used_up() && !std::exchange(told_of_ids_, true)) {
    effects_.warnings.push_back(
        concat("the table of ", kIdsMax, " names and shapes of tensors is full; new names cost ",
               "more from now on, since they are negotiated in full. Is there a step number in a ",
               "name? Give a tensor the same name in each step"));
  }
  if (coordinator_->places_are_used_up() && !std::exchange(told_of_places_, true)) {
    effects_.warnings.push_back(concat("more than ", options_.frozen_max,
                                       " tensors come again and ",
                                       "again; those beyond that number are negotiated each time"));
  }
  for (const int peer : coordinator_->missing_members(now_, options_.ask_after)) {
    if (peer != options_.rank) ask(peer);
  }
  if (options_.stall_abort_after > 0) {
    const std::string report = coordinator_->stall_report(now_, options_.stall_abort_after);
    if (!report.empty()) {
      fail(Error(ErrorCode::Stall, concat(report, " (HORON_STALL_ABORT_S ended the job)")));
      return;
    }
  }
  if (options_.stall_warn_after <= 0) return;
  const std::string warning = due_warning();
  if (!warning.empty()) next_report_ = now_;
  tell_what_is_missing();
  if (warning.empty()) return;
  // Ranks that wait for each other would do so until the job's time is over.
  const bool lasts = warning_gap_ > 2 * options_.stall_warn_after;
  effects_.warnings.push_back(concat("stalled: ", warning,
                                     lasts && options_.stall_abort_after <= 0
                                         ? "; set HORON_STALL_ABORT_S to end such a job"
                                         : ""));
}

void Controller::forgive(Nanos gap) {
  liveness_.forgive(gap);
  member_.forgive(gap);
  last_progress_ += gap;
  if (coordinator_ == nullptr) return;
  coordinator_->forgive(gap);
  // The entries have become younger: those that were told of are the same ones still.
  for (StalledEntry& entry : told_stalled_) entry.opened += gap;
  if (newest_warned_ >= 0) newest_warned_ += gap;
  last_warning_ += gap;
  next_report_ += gap;
}

// Empty if none is due. A lasting stall is warned of again after twice the time, and so on; a stall
// that has begun since is warned of as soon as the first one.
std::string Controller::due_warning() {
  const Nanos after = options_.stall_warn_after;
  if (now_ - last_warning_ < after) return "";
  Nanos newest = -1;
  for (const StalledEntry& entry : coordinator_->stalled_entries(now_, after)) {
    newest = std::max(newest, entry.opened);
  }
  if (newest > newest_warned_) warning_gap_ = 0;
  if (now_ - last_warning_ < warning_gap_) return "";
  std::string warning = coordinator_->stall_report(now_, after);
  if (warning.empty()) return "";
  last_warning_ = now_;
  newest_warned_ = newest;
  warning_gap_ = std::min(2 * std::max(warning_gap_, after), kWarningGapMax);
  return warning;
}

// Tells all members who is missing, also if nobody is any more: a wait of the program may have a
// limit shorter than stall_warn_after, and its error then names them. Tells again when this
// changes, and when the time in the text has doubled.
void Controller::tell_what_is_missing() {
  const Nanos age = std::min(options_.stall_warn_after, options_.ask_after);
  std::vector<StalledEntry> stalled = coordinator_->stalled_entries(now_, age);
  // Without a stalled entry the report says who has called join() or shutdown() and who has not. A
  // shutdown() that gives up waiting shows that.
  std::string away = stalled.empty() ? coordinator_->away_report(now_, age) : "";
  if (stalled == told_stalled_ && (stalled.empty() ? away == stall_text_ : now_ < next_report_)) {
    return;
  }
  if (!stalled.empty()) {
    next_report_ = now_ + std::min(now_ - stalled.front().opened, options_.stall_warn_after);
  }
  std::string report = stalled.empty() ? std::move(away) : coordinator_->stall_report(now_, age);
  told_stalled_ = std::move(stalled);
  if (report == stall_text_) return;
  stall_text_ = std::move(report);
  outbox_.to_all(Stall{stall_text_});
}

// Entries may have ended or become complete: the old report would blame the wrong tensors.
void Controller::renew_stall_text() {
  if (effects_.bye) stall_text_.clear();  // on every rank, with the last record
  if (stall_text_.empty()) return;
  const bool all_open =
      std::all_of(told_stalled_.begin(), told_stalled_.end(),
                  [&](const StalledEntry& entry) { return coordinator_->is_open(entry.name); });
  if (told_stalled_.empty() || !all_open) tell_what_is_missing();
}

}  // namespace horon::core
