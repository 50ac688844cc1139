#include "horon/core/negotiation/freeze_planner.h"

#include <algorithm>
#include <utility>

#include "horon/core/negotiation/gate.h"

namespace horon::core {
namespace {

constexpr int kNeedMax = 384;
// Rounds without a message for each that is negotiated until the name is frozen again.
constexpr uint64_t kRoundsThatPay = 4;

// An entry of this kind is the same each time, whoever brings it.
bool can_freeze(const ClosedEntry& entry) {
  return !has_own_rows(entry.spec->kind) && entry.joined.empty();
}

}  // namespace

void FreezePlanner::planned(EntryId id, const ClosedEntry& entry, bool may_freeze) {
  if (need_ <= 0 || id == kNoId) return;
  History& history = names_[entry.name];
  if (history.need == 0) history.need = need_;
  const bool same_parts = std::exchange(history.produced, entry.produced) == entry.produced;
  if (std::exchange(history.id, id) != id || !same_parts) history.streak = 0;
  history.streak = may_freeze && can_freeze(entry) ? history.streak + 1 : 0;
  if (history.streak >= history.need) to_freeze_.push_back(&history);
}

void FreezePlanner::not_planned(const std::string& name) {
  const auto known = names_.find(name);
  if (known != names_.end()) known->second.streak = 0;
}

bool FreezePlanner::deviate(Place place) {
  if (place == kNoPlace || place > last_place_) return false;
  const auto known = frozen_.find(place);
  if (known == frozen_.end()) return true;  // thawed meanwhile
  if (std::find(to_thaw_.begin(), to_thaw_.end(), place) != to_thaw_.end()) return true;
  History& history = *known->second;
  // Now and then every program deviates: a checkpoint, a last batch of another size. What was
  // frozen for long enough to pay for its negotiation is forgiven.
  const uint64_t rounds = (starts_ - history.frozen_at) / frozen_.size();
  const bool has_paid = rounds >= kRoundsThatPay * static_cast<uint64_t>(history.need);
  history.need = has_paid ? need_ : std::min(kNeedMax, 2 * history.need);
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

bool FreezePlanner::counter_is_free(Place place) const {
  return std::none_of(frozen_.begin(), frozen_.end(), [place](const auto& frozen) {
    return frozen.first % Gate::kCounters == place % Gate::kCounters;
  });
}

void FreezePlanner::thaw(std::vector<Item>& log, uint64_t position) {
  if (std::exchange(thaw_all_, false)) {
    to_thaw_.clear();
    for (const auto& [place, history] : frozen_) to_thaw_.push_back(place);
  }
  if (to_thaw_.empty()) return;
  for (const Place place : to_thaw_) {
    History& history = *frozen_.at(place);
    history.place = kNoPlace;
    history.streak = 0;
    frozen_.erase(place);
  }
  log.emplace_back(Thaw{std::exchange(to_thaw_, {})});
  touched_ = position + log.size();
}

void FreezePlanner::freeze(std::vector<Item>& log, uint64_t position, bool anybody_away) {
  Freeze freeze;
  for (History* const history : std::exchange(to_freeze_, {})) {
    if (anybody_away || somebody_goes_) break;
    if (frozen_.size() == Gate::kCounters || last_place_ + Gate::kCounters > Gate::kPlaceMax) {
      ran_out_ = true;
      break;
    }
    do {
      ++last_place_;
    } while (!counter_is_free(last_place_));
    history->place = last_place_;
    history->frozen_at = starts_;
    frozen_[last_place_] = history;
    freeze.ids.push_back(history->id);
    freeze.places.push_back(last_place_);
  }
  if (freeze.ids.empty()) return;
  log.emplace_back(std::move(freeze));
  touched_ = position + log.size();
}

}  // namespace horon::core
