// Votes that carry the elements (Eager), as the members that send and gather them.
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/broken_log.h"
#include "horon/core/negotiation/member.h"

namespace horon::core {

void Member::take_eager(int from, const Eager& eager, Effects& effects) {
  if (!options_.sends_eagerly) broken("elements came that nobody sends here");
  eager_votes_.keep(static_cast<size_t>(from), eager);
  gather(eager.id, effects);
}

void Member::gather(EntryId id, Effects& effects) {
  GatheredEntry gathered;
  gathered.elements = eager_votes_.take_complete(id);
  if (gathered.elements.empty()) return;
  const EntryIds::Known* const known = ids_.get(id);
  if (known == nullptr) broken("all members sent elements for an id that was never agreed");
  const auto own = unserved_.find(known->name);
  if (own == unserved_.end() || own->second.said.refused) {
    broken(
        concat("all members sent elements of \"", known->name, "\", which is not unserved here"));
  }
  gathered.name = known->name;
  gathered.ticket = own->second.said.request.ticket;
  effects.gathered.push_back(std::move(gathered));
  ++statistics_.eager_starts;
  unserved_.erase(own);
  if (last_joined_) end_join(effects);
  say_drained();
}

// That is so if this member had joined or left meanwhile: it has no part in the later round.
bool Member::awaits_elements(const Item& record) const {
  if (!options_.sends_eagerly) return false;
  const auto is_behind = [&](const std::string& name, uint64_t round) {
    const EntryId id = ids_.latest(name);
    return ids_.is_eager(id) && eager_votes_.round(id) < round;
  };
  if (const auto* const fail = std::get_if<Fail>(&record))
    return is_behind(fail->name, fail->round);
  if (const auto* const unused = std::get_if<Unused>(&record)) {
    return is_behind(unused->name, unused->round);
  }
  const auto* const plan = std::get_if<Plan>(&record);
  if (plan == nullptr) return false;
  for (const PlannedBatch& batch : plan->batches) {
    for (const PlannedEntry& entry : batch.entries) {
      const EntryIds::Known* const known = entry.spec == nullptr ? ids_.get(entry.id) : nullptr;
      if (is_behind(known == nullptr ? entry.name : known->name, entry.round)) return true;
    }
  }
  return false;
}

// A record has served the name. What members have sent for it with their votes is of no use.
void Member::end_eager_round(const std::string& name) {
  if (!options_.sends_eagerly) return;
  const EntryId id = ids_.latest(name);
  if (ids_.is_eager(id)) eager_votes_.end_round(id);
}

}  // namespace horon::core
