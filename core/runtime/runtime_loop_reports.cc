// What the loop tells people: what is stalled, and the statistics in the timeline.
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/core/runtime/runtime_loop.h"

namespace horon::core {

bool RuntimeLoop::settle_open_receives(Nanos now) {
  const bool moved = open_.settle();
  if (open_.look(now)) note_stalls();
  const std::optional<Error> overdue = open_.overdue(now);
  if (overdue) fail_all_sets(*overdue);
  return moved || overdue;
}

void RuntimeLoop::note_stalls() {
  std::string text;
  for (const auto& [id, runner] : runners_) {
    if (runner->stall_text().empty()) continue;
    const bool needs_number = id != kWorldSet && !is_pair_set(id);  // a pair's entries name ranks
    text += concat(text.empty() ? "" : "; ", needs_number ? concat(set_text(id), ": ") : "",
                   runner->stall_text());
  }
  if (!open_.stall_text().empty()) text += concat(text.empty() ? "" : "; ", open_.stall_text());
  if (text == door_.stall_report) return;  // only this thread writes it
  const std::lock_guard lock(door_.mutex);
  door_.stall_report = std::move(text);
}

void RuntimeLoop::record_statistics(Nanos now) {
  if (!records(timeline_)) return;
  // A new file has all of them, also those that do not change any more.
  const uint64_t file = timeline_->file_number();
  const bool is_new_file = file != recorded_file_;
  recorded_file_ = file;
  if (is_new_file) recorded_ = {};
  if (!is_new_file && now < next_record_) return;
  constexpr Nanos second = 1'000'000'000;
  next_record_ = now + second;
  record_statistics();
}

void RuntimeLoop::record_statistics() {
  const Statistics before = std::exchange(recorded_, door_.statistics.read());
  const auto now = Timeline::Clock::now();
  for (const auto& [name, field] : kStatisticNames) {
    if (recorded_.*field != before.*field) timeline_->counter(name, now, recorded_.*field);
  }
}

}  // namespace horon::core
