#include "horon/core/negotiation/eager_votes.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

// No member applies so many records before another one that must act on them, too.
constexpr uint64_t kAheadMax = 1 << 16;

[[noreturn]] void broken(const char* what) { throw Error(ErrorCode::Internal, what); }

}  // namespace

uint64_t EagerVotes::round(EntryId id) const {
  const auto known = entries_.find(id);
  return known == entries_.end() ? 0 : known->second.round;
}

EagerVotes::Entry& EagerVotes::at(EntryId id) {
  const auto [place, fresh] = entries_.try_emplace(id);
  Entry& entry = place->second;
  if (fresh) {
    entry.rounds.emplace_back(members_);
    entry.missing = members_;
  }
  return entry;
}

void EagerVotes::end_round(EntryId id) { end_round(at(id)); }

void EagerVotes::end_round(Entry& entry) {
  ++entry.round;
  Elements& ended = entry.rounds.front();
  std::fill(ended.begin(), ended.end(), std::nullopt);
  std::rotate(entry.rounds.begin(), entry.rounds.begin() + 1, entry.rounds.end());
  const Elements& now = entry.rounds.front();
  entry.missing = static_cast<size_t>(std::count(now.begin(), now.end(), std::nullopt));
}

void EagerVotes::keep(size_t member, Eager eager) {
  if (eager.id == kNoId || eager.id > kIdsMax) broken("elements came for an id that can't be");
  Entry& entry = at(eager.id);
  if (eager.round < entry.round) return;  // a record has served it meanwhile
  const uint64_t ahead = eager.round - entry.round;
  if (ahead > kAheadMax) broken("elements came for a round that is too far ahead");
  while (entry.rounds.size() <= ahead) entry.rounds.emplace_back(members_);
  std::optional<std::vector<std::byte>>& place = entry.rounds[ahead].at(member);
  if (place) broken("elements came twice");
  place = std::move(eager.elements);
  if (ahead == 0) --entry.missing;
}

std::vector<std::vector<std::byte>> EagerVotes::take_complete(EntryId id) {
  const auto known = entries_.find(id);
  if (known == entries_.end() || known->second.missing > 0) return {};
  Entry& entry = known->second;
  std::vector<std::vector<std::byte>> elements;
  elements.reserve(members_);
  for (auto& of_member : entry.rounds.front()) elements.push_back(*std::move(of_member));
  end_round(entry);
  return elements;
}

}  // namespace horon::core
