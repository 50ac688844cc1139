// The member's side of the gate (PROTOCOL.md, section 12): fills places, starts what the ring says,
// freezes and thaws.
#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/broken_log.h"
#include "horon/core/negotiation/fusion_planner.h"
#include "horon/core/negotiation/member.h"

namespace horon::core {

void Member::fill(FrozenEntries::Entry& entry, Request request) {
  frozen_.fill(entry, std::move(request), now_);
  if (!options_.gate->fill(entry.place)) return;
  if (options_.several_hosts) return options_.gate->append_filled(entry.place);
  owe_go(entry);
}

void Member::all_hosts_filled(Place place) {
  const FrozenEntries::Entry* const entry = frozen_.find(place);
  if (entry != nullptr) owe_go(*entry);  // else it was thawed, and is negotiated again
}

void Member::owe_go(const FrozenEntries::Entry& entry) {
  if (owed_gos_.empty()) owed_since_ = batches_started_;
  owed_gos_.push_back(entry.place);
  owed_bytes_ += entry.bytes;
  if (!entry.fuses) append_owed_gos();
}

// In the order in which the places were filled.
void Member::append_owed_gos() {
  for (size_t i = 0; i < owed_gos_.size(); ++i) {
    options_.gate->append_go(owed_gos_[i], i + 1 < owed_gos_.size());
  }
  owed_gos_.clear();
  owed_bytes_ = 0;
}

void Member::append_copies() {
  bool wakes = false;
  for (; !copies_.empty(); copies_.pop_front()) {
    const RingItem& item = copies_.front();
    const bool is_go = item.kind == RingItem::Kind::Go;
    if (is_go) {
      options_.gate->append_go(static_cast<Place>(item.value), item.more);
    } else if (options_.gate->room()) {
      options_.gate->append_marker(item.value);
    } else {
      break;
    }
    wakes = !is_go;  // append_go() wakes the others itself
  }
  // The others may have the records already, and wait for their marker.
  if (wakes) options_.gate->wake();
}

void Member::deviate(FrozenEntries::Entry& entry) {
  if (!std::exchange(entry.deviated, true)) news_.emplace_back(Deviate{entry.place});
}

void Member::set_time(Nanos now) {
  now_ = now;
  if (frozen_.filled() == 0 || now < next_look_) return;
  next_look_ = now + options_.thaw_after / 4;
  for (const Place place : frozen_.waiting_since(now - options_.thaw_after)) {
    news_.emplace_back(Deviate{place});
  }
}

void Member::take_go(const RingItem& go, Effects& effects) {
  FrozenEntries::Entry* const frozen = frozen_.find(static_cast<Place>(go.value));
  if (frozen == nullptr) {
    ++statistics_.void_starts;  // its Thaw came first, here as on all members
  } else {
    if (!frozen->filled || std::exchange(frozen->started, true)) {
      broken("a frozen entry starts that is not filled here");
    }
    chain_.push_back(frozen);
  }
  if (!go.more) start_chain(effects);
}

// An entry that may fuse joins the first open batch of the chain that has room for it, whatever
// lies between. All members build the same batches, since they read the same ring and have the same
// specs.
void Member::start_chain(Effects& effects) {
  struct Open {
    size_t start;  // in `effects`
    const EntrySpec* spec;
    int64_t bytes;
  };
  std::array<Open, 8> open;  // the newest ones
  size_t opened = 0;
  for (FrozenEntries::Entry* const frozen : chain_) {
    const auto fits = [&](const Open& batch) {
      return batch.bytes + frozen->bytes <= options_.fusion_bytes_max &&
             same_collective(*batch.spec, *frozen->spec);
    };
    const auto end = open.begin() + std::min(opened, open.size());
    const auto batch = frozen->fuses ? std::find_if(open.begin(), end, fits) : end;
    const size_t where = batch != end ? batch->start : effects.starts.size();
    if (batch != end) {
      batch->bytes += frozen->bytes;
    } else {
      StartBatch& start = effects.add_start();
      start.sequence = batches_started_++;
      start.contributors = size_;
      ++statistics_.frozen_batches;
      if (frozen->fuses) {
        open[opened++ % open.size()] = {where, frozen->spec.get(), frozen->bytes};
      }
    }
    started_places_.push_back(frozen->place);
    Request request = frozen_.take(*frozen);
    StartEntry& entry = effects.starts[where].entries.emplace_back();
    entry.ticket = request.ticket;
    entry.name = std::move(request.name);
    entry.spec = std::move(request.spec);
    entry.produced = frozen->details.produced;
    entry.extents = frozen->details.extents;
    ++statistics_.frozen_starts;
  }
  chain_.clear();
}

void Member::apply(const Freeze& freeze) {
  if (options_.gate == nullptr) broken("it freezes where there is no gate");
  if (freeze.ids.size() != freeze.places.size()) broken("a freeze has ids without places");
  for (size_t i = 0; i < freeze.ids.size(); ++i) {
    const EntryIds::Known* const known = ids_.get(freeze.ids[i]);
    if (known == nullptr) broken("it freezes an id that was never agreed");
    const auto details = details_.find(freeze.ids[i]);
    if (unserved_.contains(known->name) ||
        !frozen_.add(known->name, known->spec,
                     details == details_.end() ? PlanDetails{} : details->second,
                     freeze.places[i])) {
      broken(concat("it freezes \"", known->name, "\", which can't be frozen now"));
    }
  }
  statistics_.freezes += freeze.ids.size();
  say_away_again();
}

void Member::note_details(const PlannedEntry& planned, const Request& request) {
  if (options_.gate == nullptr || planned.id == kNoId) return;
  const bool any = !planned.produced.empty() || !planned.extents.empty();
  if (!any || planned.extents.size() > kFrozenExtentsMax) return;
  details_[planned.id] = {request.absent, request.extents, planned.produced, planned.extents};
}

void Member::apply(const Thaw& thaw) {
  for (const Place place : thaw.places) {
    std::string name;
    std::optional<Request> unstarted;
    if (!frozen_.remove(place, name, unstarted)) broken("it thaws what is not frozen");
    if (unstarted) {
      vote(name, Vote{false, {}, *std::move(unstarted)});
    } else if (const auto own = unserved_.find(name); own != unserved_.end()) {
      say(name, own->second.said);
    }
  }
  statistics_.thaws += thaw.places.size();
  say_away_again();
}

}  // namespace horon::core
