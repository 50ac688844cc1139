#include "horon/core/negotiation/frozen_entries.h"

#include <utility>

#include "horon/core/negotiation/agreement.h"
#include "horon/core/negotiation/fusion_planner.h"
#include "horon/core/negotiation/gate.h"

namespace horon::core {

bool FrozenEntries::add(const std::string& name, const SpecPtr& spec, PlanDetails details,
                        Place place) {
  by_counter_.resize(Gate::kCounters);
  ByName::value_type*& at = by_counter_[place % Gate::kCounters];
  if (place <= last_place_ || at != nullptr) return false;
  const auto [entry, fresh] = by_name_.try_emplace(name);
  if (!fresh) return false;
  entry->second.place = place;
  entry->second.spec = spec;
  entry->second.details = std::move(details);
  entry->second.bytes = byte_count(*spec);
  entry->second.fuses = may_fuse(*spec, entry->second.bytes, alone_bytes_);
  at = &*entry;
  last_place_ = place;
  return true;
}

bool FrozenEntries::remove(Place place, std::string& name, std::optional<Request>& unstarted) {
  Entry* const entry = find(place);
  if (entry == nullptr) return false;
  name = std::exchange(by_counter_[place % Gate::kCounters], nullptr)->first;
  if (entry->filled) unstarted = take(*entry);
  by_name_.erase(name);
  return true;
}

FrozenEntries::Entry* FrozenEntries::find(const std::string& name) {
  if (by_name_.empty()) return nullptr;
  const auto entry = by_name_.find(name);
  return entry == by_name_.end() ? nullptr : &entry->second;
}

FrozenEntries::Entry* FrozenEntries::find(Place place) {
  if (by_counter_.empty()) return nullptr;
  ByName::value_type* const at = by_counter_[place % Gate::kCounters];
  return at == nullptr || at->second.place != place ? nullptr : &at->second;
}

bool FrozenEntries::fits(const Entry& entry, const Request& request) {
  if (request.absent != entry.details.absent || request.extents != entry.details.said) return false;
  if (request.spec == entry.latest || request.spec == entry.spec) return true;
  return agree(*request.spec, *entry.spec) && request.spec->parts == entry.spec->parts;
}

void FrozenEntries::fill(Entry& entry, Request request, Nanos now) {
  entry.latest = std::exchange(request.spec, entry.spec);
  entry.request = std::move(request);
  entry.filled_at = now;
  entry.filled = true;
  ++filled_;
}

Request FrozenEntries::take(Entry& entry) {
  entry.filled = false;
  entry.started = false;
  --filled_;
  return std::move(entry.request);
}

std::vector<Place> FrozenEntries::waiting_since(Nanos time) {
  std::vector<Place> places;
  for (auto& [name, entry] : by_name_) {
    if (!entry.filled || entry.filled_at > time || std::exchange(entry.deviated, true)) continue;
    places.push_back(entry.place);
  }
  return places;
}

void FrozenEntries::forgive(Nanos gap) {
  for (auto& [name, entry] : by_name_) entry.filled_at += gap;
}

std::vector<Request> FrozenEntries::clear() {
  std::vector<Request> requests;
  for (auto& [name, entry] : by_name_) {
    if (entry.filled) requests.push_back(take(entry));
  }
  by_name_.clear();
  by_counter_.clear();
  return requests;
}

}  // namespace horon::core
