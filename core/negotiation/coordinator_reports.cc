// What the coordinator can tell people: who is missing, and for how long; why an entry fails.
//
// An entry that is not complete counts as stalled once it has been open for the age that is asked
// about, also where all that have come were refused: one of them may have called again since,
// rightly, and its next vote waits for the end of this entry. The oldest entries come first, so
// none is behind one that is too young. There may be thousands, and a late rank that submits them
// ends one after the other: what is told each time must not look at all of them.
#include <algorithm>
#include <iterator>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/agreement.h"
#include "horon/core/negotiation/coordinator.h"

namespace horon::core {
namespace {

// The first member of both, which are sorted; -1: none.
int first_of_both(const std::vector<int>& some, const std::vector<int>& others) {
  auto other = others.begin();
  for (const int member : some) {
    other = std::lower_bound(other, others.end(), member);
    if (other == others.end()) break;
    if (*other == member) return member;
  }
  return -1;
}

}  // namespace

std::vector<int> Coordinator::missing_members(Nanos now, Nanos age) const {
  std::vector<int> missing;
  for (const Entry& entry : entries_) {
    if (now - entry.opened < age) break;
    if (entry.complete()) continue;
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
    if (stalled.size() == kReportedMax || now - entry.opened < age) break;
    if (entry.complete()) continue;
    stalled.push_back({entry.name, silent_members(entry), entry.opened});
  }
  return stalled;
}

void Coordinator::forgive(Nanos gap) {
  for (Entry& entry : entries_) entry.opened += gap;
  away_since_ += gap;
}

size_t Coordinator::count_stalled(Nanos now, Nanos age) const {
  size_t count = entries_.size() - complete_.size();
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (now - entry->opened >= age) break;
    if (!entry->complete()) --count;
  }
  return count;
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
  size_t named = 0;
  std::vector<Reported> reported;
  for (const Entry& entry : entries_) {
    if (named == kReportedMax || now - entry.opened < age) break;
    if (entry.complete()) continue;
    ++named;
    const std::vector<int> ready = members_with(entry, Vote::Kind::Ready);
    const std::vector<int> refused = members_with(entry, Vote::Kind::Refused);
    const std::vector<int> silent = silent_members(entry);
    out << (named > 1 ? "; " : "") << "tensor \"" << entry.name << "\": waiting for "
        << name_members(silent) << " for " << (now - entry.opened) / 1000000000 << " s (";
    if (!ready.empty()) out << "ready: " << name_members(ready);
    if (!refused.empty())
      out << (ready.empty() ? "" : "; ") << "refused on " << name_members(refused);
    out << ")";
    if (entry.disagree) out << "; already seen: " << mismatch_text(entry);
    reported.push_back({&entry.name, ready, silent});
  }
  const size_t others = count_stalled(now, age) - named;
  if (others > 0) out << "; and " << others << " more tensors";
  out << waiting_for_each_other(reported);
  return out.str();
}

// Two ranks of which each has what the other lacks: the most frequent reason is a collective, or a
// backward(), that only some ranks reach. It does not pass by waiting, unlike a rank that is slow.
std::string Coordinator::waiting_for_each_other(const std::vector<Reported>& reported) const {
  for (auto one = reported.begin(); one != reported.end(); ++one) {
    for (auto other = std::next(one); other != reported.end(); ++other) {
      const int first = first_of_both(one->ready, other->silent);
      const int second = first_of_both(other->ready, one->silent);
      if (first < 0 || second < 0) continue;
      return concat("; ", name_members({first}), " waits with \"", *one->name, "\" and ",
                    name_members({second}), " with \"", *other->name,
                    "\": is one of them in a branch that not all ranks take?");
    }
  }
  return "";
}

std::string Coordinator::away_report(Nanos now, Nanos age) const {
  if (away_count_ == 0 || now - away_since_ < age) return {};
  if (shut_count_ == size_ && !ended_) {
    std::vector<int> busy;
    for (int member = 0; member < size_; ++member) {
      if (drained_[static_cast<size_t>(member)] < to_drain()) busy.push_back(member);
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

// The error of a collective that can't run without the members that have joined.
std::optional<Fail> Coordinator::fault_of_joined(const Entry& entry,
                                                 const std::vector<int>& joined) const {
  const auto speaker = std::find_if(entry.votes.begin(), entry.votes.end(), [](const Vote& vote) {
    return vote.kind == Vote::Kind::Ready;
  });
  const EntrySpec& spec = *speaker->spec;
  if (spec.captured) {  // those members have no graph that could hold their part
    return Fail{entry.name, ErrorCode::RankLeft,
                concat("tensor \"", entry.name, "\" can't be captured in a graph: ",
                       name_members(joined), joined.size() == 1 ? " has" : " have",
                       " joined. Capture before any rank calls join().")};
  }
  if (spec.kind == CollectiveKind::Broadcast) {
    const bool root_joined = std::any_of(joined.begin(), joined.end(), [&](int member) {
      return options_.ranks[static_cast<size_t>(member)] == spec.root;
    });
    if (!root_joined) return std::nullopt;
    return Fail{entry.name, ErrorCode::RankLeft,
                concat("tensor \"", entry.name, "\" can't be broadcast: its root, rank ", spec.root,
                       ", has joined. Broadcast before it calls join().")};
  }
  if (spec.kind == CollectiveKind::Reducescatter || spec.kind == CollectiveKind::Alltoall ||
      spec.kind == CollectiveKind::Gather || spec.kind == CollectiveKind::Scatter) {
    return Fail{entry.name, ErrorCode::RankLeft,
                concat("tensor \"", entry.name, "\" can't complete: ", name_members(joined),
                       joined.size() == 1 ? " has" : " have", " joined, and ", to_string(spec.kind),
                       " needs every rank. Call it before join(), or on a process set of the ranks "
                       "that go on.")};
  }
  // A barrier with parts, which say what it is for, is the session's own, as in add_process_set().
  if (spec.kind == CollectiveKind::Barrier && !spec.parts.empty()) {
    return Fail{entry.name, ErrorCode::RankLeft,
                concat("\"", entry.name, "\" can't complete: ", name_members(joined),
                       joined.size() == 1 ? " has" : " have",
                       " joined, and it needs every rank. Call it before join(), or make process "
                       "sets by add_process_set_among().")};
  }
  return std::nullopt;
}

std::string Coordinator::mismatch_text(const Entry& entry) const {
  std::vector<std::pair<int, SpecPtr>> specs;
  for (size_t member = 0; member < entry.votes.size(); ++member) {
    const Vote& vote = entry.votes[member];
    if (vote.kind == Vote::Kind::Ready) specs.emplace_back(options_.ranks[member], vote.spec);
  }
  return disagreement(entry.name, specs);
}

}  // namespace horon::core
