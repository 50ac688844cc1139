// Votes that carry the elements (Eager): the coordinator only watches that all members send them.
#include <algorithm>
#include <utility>

#include "horon/core/negotiation/broken_log.h"
#include "horon/core/negotiation/coordinator.h"

namespace horon::core {

void Coordinator::take(int from, const Item& item, uint64_t applied, Nanos now) {
  now_ = now;
  if (!is_ahead(from, item)) return take_now(from, item, applied, now);
  ahead_[static_cast<size_t>(from)].push_back({item, applied});
  ++ahead_count_;
}

// A member's words about frozen entries do not wait: no entry of such a name is open.
bool Coordinator::is_ahead(int from, const Item& item) const {
  if (!options_.eager || std::holds_alternative<Deviate>(item) ||
      std::holds_alternative<RingItem>(item)) {
    return false;
  }
  if (!ahead_.at(static_cast<size_t>(from)).empty()) return true;
  const std::string* const name = name_of(item);
  if (name == nullptr) return false;
  const auto open = by_name_.find(*name);
  return open != by_name_.end() && open->second->votes[static_cast<size_t>(from)].eager;
}

// Of the entry that a member speaks of; null if the item is about none.
const std::string* Coordinator::name_of(const Item& item) const {
  const auto of_id = [&](EntryId id) -> const std::string* {
    const EntryIds::Known* const known = ids_.get(id);
    return known == nullptr ? nullptr : &known->name;
  };
  if (const auto* const ready = std::get_if<Ready>(&item)) {
    return ready->id == kNoId ? &ready->name : of_id(ready->id);
  }
  if (const auto* const eager = std::get_if<Eager>(&item)) return of_id(eager->id);
  const auto* const refused = std::get_if<Refused>(&item);
  return refused == nullptr ? nullptr : &refused->name;
}

// There is no circle of members that wait for one another: what a member is ahead of was sent
// before its own word, and each member's words come in their order.
bool Coordinator::catch_up() {
  if (ahead_count_ == 0) return false;
  for (size_t member = 0; member < ahead_.size(); ++member) {
    std::deque<Ahead> waiting = std::exchange(ahead_[member], {});
    ahead_count_ -= waiting.size();
    for (const Ahead& word : waiting) take(static_cast<int>(member), word.item, word.applied, now_);
  }
  return !complete_.empty();
}

void Coordinator::take_eager(int from, const Eager& eager, Nanos now) {
  const EntryIds::Known* const known = ids_.get(eager.id);
  if (known == nullptr) broken(from, "it sent elements for an id that was never given");
  Ready ready;
  ready.id = eager.id;
  take_ready(from, ready, now);
  by_name_.at(known->name)->votes[static_cast<size_t>(from)].eager = true;
}

uint64_t Coordinator::end_round(const std::string& name) {
  if (!options_.eager) return 0;
  const EntryId id = ids_.latest(name);
  return ids_.is_eager(id) ? rounds_[id]++ : 0;
}

bool Coordinator::is_served_eagerly(const Entry& entry) {
  return std::all_of(entry.votes.begin(), entry.votes.end(),
                     [](const Vote& vote) { return vote.eager; });
}

}  // namespace horon::core
