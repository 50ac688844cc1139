#include "horon/core/negotiation/entry_ids.h"

#include "horon/core/negotiation/agreement.h"

namespace horon::core {

EntryId EntryIds::find(const std::string& name, const SpecPtr& spec) {
  const auto named = by_name_.find(name);
  if (named == by_name_.end()) return kNoId;
  const OfName& of_name = named->second;
  for (size_t i = 0; i < of_name.count; ++i) {
    if (known_[of_name.ids.at(i) - 1].spec == spec) return of_name.ids.at(i);
  }
  for (size_t i = 0; i < of_name.count; ++i) {
    const EntryId id = of_name.ids.at(i);
    if (!agree(*known_[id - 1].spec, *spec)) continue;
    expect(id, spec);
    return id;
  }
  return kNoId;
}

EntryId EntryIds::give(const std::string& name, const SpecPtr& spec, bool eager) {
  const auto named = by_name_.find(name);
  const size_t count = named == by_name_.end() ? 0 : named->second.count;
  if (count == kSpecsPerName || (used_up() && count > 0)) {
    OfName& of_name = named->second;
    const EntryId id = of_name.ids.at(of_name.oldest);
    known_[id - 1] = {name, spec, eager};
    of_name.oldest = (of_name.oldest + 1) % of_name.count;
    return id;
  }
  if (used_up()) return kNoId;
  known_.push_back({name, spec, eager});
  OfName& of_name = by_name_[name];
  of_name.ids.at(of_name.count++) = static_cast<EntryId>(known_.size());
  return static_cast<EntryId>(known_.size());
}

bool EntryIds::note(EntryId id, const std::string& name, const SpecPtr& spec, bool eager) {
  if (const Known* const known = get(id)) {
    if (known->name != name) return false;
    known_[id - 1] = {name, spec, eager};
    return true;
  }
  if (id != known_.size() + 1 || used_up()) return false;
  OfName& of_name = by_name_[name];
  if (of_name.count == kSpecsPerName) return false;
  known_.push_back({name, spec, eager});
  of_name.ids.at(of_name.count++) = id;
  return true;
}

void EntryIds::note_plan(EntryId id) {
  if (const Known* const known = get(id)) by_name_.at(known->name).latest = id;
}

EntryId EntryIds::latest(const std::string& name) const {
  const auto named = by_name_.find(name);
  return named == by_name_.end() ? kNoId : named->second.latest;
}

bool EntryIds::is_eager(EntryId id) const {
  const Known* const known = get(id);
  return known != nullptr && known->eager && latest(known->name) == id;
}

const EntryIds::Known* EntryIds::get(EntryId id) const {
  return id == kNoId || id > known_.size() ? nullptr : &known_[id - 1];
}

}  // namespace horon::core
