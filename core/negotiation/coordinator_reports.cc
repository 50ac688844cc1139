// What the coordinator can tell people: who is missing, and for how long.
#include <algorithm>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/coordinator.h"

namespace horon::core {

std::vector<int> Coordinator::missing_members(Nanos now, Nanos age) const {
  std::vector<int> missing;
  for (const Entry& entry : entries_) {
    if (!is_stalled(entry, now, age)) continue;
    const std::vector<int> silent = silent_members(entry);
    missing.insert(missing.end(), silent.begin(), silent.end());
  }
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  return missing;
}

std::vector<std::pair<std::string, std::vector<int>>> Coordinator::open_entries() const {
  std::vector<std::pair<std::string, std::vector<int>>> open;
  for (const Entry& entry : entries_) open.emplace_back(entry.name, silent_members(entry));
  return open;
}

std::vector<StalledEntry> Coordinator::stalled_entries(Nanos now, Nanos age) const {
  std::vector<StalledEntry> stalled;
  for (const Entry& entry : entries_) {
    if (stalled.size() == kReportedMax) break;
    if (!is_stalled(entry, now, age)) continue;
    stalled.push_back({entry.name, silent_members(entry), entry.opened});
  }
  return stalled;
}

void Coordinator::forgive(Nanos gap) {
  for (Entry& entry : entries_) entry.opened += gap;
}

// Counts also entries on which all votes so far are refusals: one of those ranks may have called
// again, correctly, and its next vote waits for the end of this entry.
bool Coordinator::is_stalled(const Entry& entry, Nanos now, Nanos age) {
  return !entry.complete() && now - entry.opened >= age;
}

std::vector<int> Coordinator::members_with(const Entry& entry, Vote::Kind kind) {
  std::vector<int> members;
  for (size_t member = 0; member < entry.votes.size(); ++member) {
    if (entry.votes[member].kind == kind) members.push_back(static_cast<int>(member));
  }
  return members;
}

std::string Coordinator::stall_report(Nanos now, Nanos age) const {
  TextStream out;
  size_t stalled = 0;
  for (const Entry& entry : entries_) {
    if (!is_stalled(entry, now, age) || ++stalled > kReportedMax) continue;
    const std::vector<int> ready = members_with(entry, Vote::Kind::Ready);
    const std::vector<int> refused = members_with(entry, Vote::Kind::Refused);
    const std::vector<int> silent = silent_members(entry);
    out << (stalled > 1 ? "; " : "") << "tensor \"" << entry.name << "\": waiting for "
        << name_members(silent) << " since " << (now - entry.opened) / 1000000000 << " s (";
    if (!ready.empty()) out << "ready: " << name_members(ready);
    if (!refused.empty())
      out << (ready.empty() ? "" : "; ") << "refused on " << name_members(refused);
    out << ")";
    if (entry.disagree) out << "; already seen: " << mismatch_text(entry);
  }
  if (stalled > kReportedMax) out << "; and " << stalled - kReportedMax << " more tensors";
  return out.str();
}

std::string Coordinator::away_report(Nanos now, Nanos age) const {
  if (away_count_ == 0 || now - away_since_ < age) return {};
  if (shut_count_ == size_ && !ended_) {
    std::vector<int> busy;
    for (int member = 0; member < size_; ++member) {
      if (drained_[static_cast<size_t>(member)] < batches_planned_) busy.push_back(member);
    }
    return concat("all ranks called shutdown(); collectives still run on ", name_members(busy));
  }
  const bool some_joined = std::find(joined_.begin(), joined_.end(), true) != joined_.end();
  if (away_count_ == size_ || (options_.may_leave && !some_joined)) return {};
  std::vector<int> gone;
  std::vector<int> here;
  for (int member = 0; member < size_; ++member) {
    (away(static_cast<size_t>(member)) ? gone : here).push_back(member);
  }
  return concat(name_members(gone), " called shutdown() or join(); not yet: ", name_members(here));
}

}  // namespace horon::core
