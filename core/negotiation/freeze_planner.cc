#include "horon/core/negotiation/freeze_planner.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/frozen_entries.h"

namespace horon::core {
namespace {

constexpr int kNeedMax = 384;
static_assert(Gate::kCounters % 64 == 0, "a bit for each in words of 64");
// Freezing a name takes some plans at first. It has paid off if the name then starts this many
// times as often, each time without a message. The bound does not grow with freezes that did not
// pay: a program that returns to an earlier loop freezes its names soon.
constexpr uint64_t kStartsThatPay = 4;

// True if every member takes part, and each can keep the extents that it is told.
bool can_freeze(const ClosedEntry& entry, size_t numbers_told) {
  return entry.joined.empty() && numbers_told <= kFrozenExtentsMax;
}

}  // namespace

FreezePlanner::FreezePlanner(int need, size_t frozen_max)
    : need_(need), frozen_max_(frozen_max), by_counter_(Gate::kCounters) {
  HORON_CHECK(frozen_max <= Gate::kCounters, "each frozen name has a counter");
}

void FreezePlanner::planned(EntryId id, const ClosedEntry& entry, size_t numbers_told,
                            bool may_freeze) {
  if (need_ <= 0 || id == kNoId) return;
  History& history = names_[entry.name];
  if (history.need == 0) history.need = need_;
  ++events_;
  const uint64_t gap = events_ - std::exchange(history.seen, events_);
  if (!can_freeze(entry, numbers_told)) {
    history.streak = 0;
    return;
  }
  const bool same_parts = std::exchange(history.produced, entry.produced) == entry.produced;
  const uint64_t rows = hash_of({reinterpret_cast<const char*>(entry.extents.data()),
                                 entry.extents.size() * sizeof(int64_t)});
  const bool same_rows = std::exchange(history.rows, rows) == rows;
  if (std::exchange(history.id, id) != id || !same_parts || !same_rows) history.streak = 0;
  history.longest_gap = history.streak > 0 ? std::max(history.longest_gap, gap) : 0;
  history.streak = may_freeze ? history.streak + 1 : 0;
  if (history.streak >= history.need) to_freeze_.push_back(&history);
}

void FreezePlanner::break_row(const std::string& name) {
  const auto known = names_.find(name);
  if (known != names_.end()) known->second.streak = 0;
}

FreezePlanner::History* FreezePlanner::frozen_at(Place place) const {
  History* const history = by_counter_[place % Gate::kCounters];
  return history == nullptr || history->place != place ? nullptr : history;
}

void FreezePlanner::note_start(Place place) {
  ++events_;
  History* const history = frozen_at(place);
  if (history == nullptr) return;  // thawed already; this Go was appended before the Thaw
  ++history->starts;
  history->seen = events_;
  frozen_.splice(frozen_.end(), frozen_, history->in_frozen);
}

// A name that thaws must come more often in a row the next time, unless it was frozen for long
// enough to pay for its negotiation. Now and then every program deviates: a checkpoint, a last
// batch of another size.
void FreezePlanner::settle_need(History& history) const {
  const bool has_paid = history.starts >= kStartsThatPay * static_cast<uint64_t>(need_);
  history.need = has_paid ? need_ : std::min(kNeedMax, 2 * history.need);
}

bool FreezePlanner::deviate(Place place) {
  if (place == kNoPlace || place > last_place_) return false;
  History* const history = frozen_at(place);
  if (history == nullptr || std::exchange(history->thaws, true)) return true;  // thawed, or due
  settle_need(*history);
  to_thaw_.push_back(place);
  return true;
}

bool FreezePlanner::drops_away(uint64_t applied) {
  thaw_all_ = thaw_all_ || !frozen_.empty();
  somebody_goes_ = !frozen_.empty() || applied < touched_;
  return somebody_goes_;
}

bool FreezePlanner::is_frozen(const std::string& name) const {
  if (frozen_.empty()) return false;
  const auto known = names_.find(name);
  return known != names_.end() && known->second.place != kNoPlace;
}

void FreezePlanner::release(History& history) {
  const uint32_t counter = history.place % Gate::kCounters;
  by_counter_[counter] = nullptr;
  used_counters_.at(counter / 64) &= ~(uint64_t{1} << (counter % 64));
  frozen_.erase(history.in_frozen);
  history.place = kNoPlace;
  history.thaws = false;
  history.streak = 0;
}

// The name that was seen longest ago gives its place up to one that comes more often. Where more
// names take turns than there are places, each would lose its place before its turn comes, and all
// would pay for freezing and thawing. So the oldest name stays, unless it has been away for twice
// the longest gap of the wanted name.
bool FreezePlanner::make_room(const History& wanted, std::vector<Place>& given_up) {
  History& oldest = *frozen_.front();
  const uint64_t away = events_ - oldest.seen;
  if (wanted.streak < 2 || away <= 2 * wanted.longest_gap) return false;
  settle_need(oldest);
  given_up.push_back(oldest.place);
  release(oldest);
  return true;
}

// The next number whose counter is free; at least one is.
Place FreezePlanner::next_place() const {
  const uint32_t first = (last_place_ + 1) % Gate::kCounters;
  size_t word = first / 64;
  uint64_t free = ~used_counters_.at(word) & (~uint64_t{0} << (first % 64));
  while (free == 0) {
    word = (word + 1) % used_counters_.size();
    free = ~used_counters_.at(word);
  }
  const auto counter =
      static_cast<uint32_t>(64 * word) + static_cast<uint32_t>(std::countr_zero(free));
  return last_place_ + 1 + (counter + Gate::kCounters - first) % Gate::kCounters;
}

void FreezePlanner::thaw(std::vector<Item>& log, uint64_t position) {
  if (std::exchange(thaw_all_, false)) {
    to_thaw_.clear();
    for (const History* const history : frozen_) to_thaw_.push_back(history->place);
    std::sort(to_thaw_.begin(), to_thaw_.end());
  }
  if (to_thaw_.empty()) return;
  for (const Place place : to_thaw_) release(*frozen_at(place));
  log.emplace_back(Thaw{std::exchange(to_thaw_, {})});
  touched_ = position + log.size();
}

void FreezePlanner::freeze(std::vector<Item>& log, uint64_t position, bool anybody_away) {
  Freeze freeze;
  Thaw given_up;
  for (History* const history : std::exchange(to_freeze_, {})) {
    if (anybody_away || somebody_goes_) break;
    const bool numbers_left = last_place_ + Gate::kCounters <= Gate::kPlaceMax;
    if (!numbers_left || (frozen_.size() >= frozen_max_ && !make_room(*history, given_up.places))) {
      ran_out_ = true;
      continue;
    }
    last_place_ = next_place();
    history->place = last_place_;
    history->starts = 0;
    history->seen = events_;
    history->in_frozen = frozen_.insert(frozen_.end(), history);
    const uint32_t counter = last_place_ % Gate::kCounters;
    by_counter_[counter] = history;
    used_counters_.at(counter / 64) |= uint64_t{1} << (counter % 64);
    freeze.ids.push_back(history->id);
    freeze.places.push_back(last_place_);
  }
  if (!given_up.places.empty()) log.emplace_back(std::move(given_up));
  if (freeze.ids.empty()) return;
  log.emplace_back(std::move(freeze));
  touched_ = position + log.size();
}

}  // namespace horon::core
