#include "horon/core/negotiation/coordinator.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/negotiation/agreement.h"
#include "horon/core/negotiation/broken_log.h"
#include "horon/core/negotiation/gate.h"
#include "horon/core/negotiation/told_extents.h"

namespace horon::core {
namespace {

// The refusing rank's text begins with the tensor's name, which the caller adds itself.
std::string without_name(const std::string& refusal, const std::string& name) {
  const std::string start = concat("tensor \"", name, "\": ");
  return refusal.starts_with(start) ? refusal.substr(start.size()) : refusal;
}

}  // namespace

Coordinator::Coordinator(const Options& options)
    : options_(options),
      size_(static_cast<int>(options.ranks.size())),
      planner_(options.fusion_bytes_max, options.alone_bytes),
      freezer_(options.freeze_after, options.frozen_max),
      filled_hosts_(options.host_of),
      joined_(options.ranks.size()),
      shut_(options.ranks.size()),
      drained_(options.ranks.size()),
      ahead_(options.ranks.size()) {}

std::string Coordinator::name_members(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(options_.ranks.at(static_cast<size_t>(member)));
  return name_ranks(ranks);
}

void Coordinator::broken(int member, const std::string& what) const {
  core::broken(options_.ranks.at(static_cast<size_t>(member)), what);
}

size_t Coordinator::extents_said(const EntrySpec& spec, size_t member) const {
  return spec.parts.size() * extents_of_part(spec, options_.ranks[member] == spec.root, size_);
}

void Coordinator::take_now(int from, const Item& item, uint64_t applied, Nanos now) {
  const auto member = static_cast<size_t>(from);
  if (is_away_item(item) && freezer_.drops_away(applied)) return;
  if (shut_.at(member) != std::holds_alternative<Drained>(item)) {
    broken(from, shut_[member] ? "it spoke after its shutdown" : "it drained before its shutdown");
  }
  std::visit(Overloaded{
                 [&](const Ready& ready) { take_ready(from, ready, now); },
                 [&](const Eager& eager) { take_eager(from, eager, now); },
                 [&](const Refused& refused) { take_refused(from, refused, now); },
                 [&](const Join&) {
                   if (joined_[member]) broken(from, "it joined twice");
                   set_away(member, joined_, now);
                   last_joined_ = from;
                 },
                 [&](const Shutdown&) {
                   set_away(member, shut_, now);
                   ++shut_count_;
                 },
                 [&](const Drained& drained) { take_drained(from, drained); },
                 [&](const Deviate& deviate) {
                   if (!freezer_.deviate(deviate.place)) broken(from, "it names no place");
                 },
                 [&](const RingItem& filled) { take_filled(from, filled); },
                 [&](const auto&) { broken(from, "a record came up from a member"); },
             },
             item);
}

// The member has joined or shut down: from now on nobody waits for its vote.
void Coordinator::set_away(size_t member, std::vector<bool>& flags, Nanos now) {
  const bool was_away = away(member);
  flags[member] = true;
  if (was_away) return;
  if (away_count_++ == 0) away_since_ = now;
  for (Entry& entry : entries_) {
    if (entry.votes[member].kind == Vote::Kind::None) one_less(entry);
  }
}

Coordinator::Entry& Coordinator::open(const std::string& name, Nanos now) {
  const auto known = by_name_.find(name);
  if (known != by_name_.end()) return *known->second;
  Entry& entry = entries_.emplace_back();
  entry.name = name;
  entry.votes.resize(static_cast<size_t>(size_));
  entry.awaited = size_ - away_count_;
  entry.opened = now;
  by_name_[name] = std::prev(entries_.end());
  return entry;
}

Coordinator::Vote& Coordinator::vote_of(Entry& entry, int from) {
  if (freezer_.is_frozen(entry.name)) {
    broken(from, concat("it said \"", entry.name, "\", which is frozen"));
  }
  Vote& vote = entry.votes.at(static_cast<size_t>(from));
  if (vote.kind != Vote::Kind::None) broken(from, concat("it said \"", entry.name, "\" twice"));
  if (joined_[static_cast<size_t>(from)]) broken(from, "it submitted while joined");
  return vote;
}

void Coordinator::take_ready(int from, const Ready& ready, Nanos now) {
  const EntryIds::Known* const known = ids_.get(ready.id);
  if (ready.id != kNoId && known == nullptr) broken(from, "it used an id that was never given");
  const std::string& name = known == nullptr ? ready.name : known->name;
  const SpecPtr& spec = known == nullptr ? ready.spec : known->spec;
  if (!ready.absent.empty() && ready.absent.size() != spec->parts.size()) {
    broken(from, concat("the absent flags of \"", name, "\" do not fit its tensors"));
  }
  const bool negative = std::any_of(ready.extents.begin(), ready.extents.end(),
                                    [](int64_t extent) { return extent < 0; });
  if (negative || ready.extents.size() != extents_said(*spec, static_cast<size_t>(from))) {
    broken(from, concat("the extents of \"", name, "\" can't be"));
  }
  Entry& entry = open(name, now);
  Vote& vote = vote_of(entry, from);
  vote.kind = Vote::Kind::Ready;
  vote.spec = spec;
  vote.wants_eager = ready.eager;
  vote.absent = ready.absent;
  vote.extents = ready.extents;
  for (const Vote& other : entry.votes) {
    if (other.kind != Vote::Kind::Ready || &other == &vote) continue;
    if (other.spec != vote.spec && !agree(*other.spec, *vote.spec)) entry.disagree = true;
    break;  // one comparison is enough: if the earlier votes differ, that is known
  }
  one_less(entry);
}

void Coordinator::take_refused(int from, const Refused& refused, Nanos now) {
  Entry& entry = open(refused.name, now);
  Vote& vote = vote_of(entry, from);
  vote.kind = Vote::Kind::Refused;
  vote.refusal = refused.text;
  entry.refused = true;
  one_less(entry);
}

void Coordinator::take_drained(int from, const Drained& drained) {
  uint64_t& said = drained_[static_cast<size_t>(from)];
  // It may know of entries that are served, and open here only until another member's words come.
  if (drained.batches <= said || drained.batches > to_drain() + entries_.size()) {
    broken(from, concat("it says that ", drained.batches, " batches have ended"));
  }
  drained_sum_ += drained.batches - said;
  said = drained.batches;
}

// A place is never given again, and a host fills it again only after it has read its Go. So a late
// Filled names a place that is no longer frozen.
void Coordinator::take_filled(int from, const RingItem& filled) {
  const auto place = static_cast<Place>(std::min<uint64_t>(filled.value, Gate::kPlaceMax));
  if (!freezer_.was_given(place)) broken(from, "it fills no place");
  if (!freezer_.is_frozen(place)) return;
  if (!filled_hosts_.fill(from, place)) broken(from, concat("it can't fill place ", place));
  if (filled_hosts_.take_all_filled(place)) filled_places_.push_back(place);
}

void Coordinator::frozen_started(uint64_t batches, std::span<const Place> places) {
  for (const Place place : places) freezer_.note_start(place);
  in_flight_ += static_cast<int>(batches);
  batches_planned_ += batches;
}

bool Coordinator::all_drained() const {
  return entries_.empty() && drained_sum_ == to_drain() * static_cast<uint64_t>(size_);
}

void Coordinator::one_less(Entry& entry) {
  if (--entry.awaited == 0) complete_.push_back(by_name_.at(entry.name));
}

std::vector<int> Coordinator::silent_members(const Entry& entry) const {
  std::vector<int> silent;
  for (size_t member = 0; member < entry.votes.size(); ++member) {
    const bool voted = entry.votes[member].kind != Vote::Kind::None;
    if (!voted && !away(member)) silent.push_back(static_cast<int>(member));
  }
  return silent;
}

std::vector<Item> Coordinator::decide() {
  std::vector<Item> log;
  if (ended_) return log;
  freezer_.thaw(log, log_size_);
  uint64_t served = 0;
  do {
    served = eager_served_;
    for (const EntryIterator entry : complete_) {
      close(*entry, log);
      by_name_.erase(entry->name);
      entries_.erase(entry);
    }
    complete_.clear();
  } while (eager_served_ > served && catch_up());
  freezer_.thaw(log, log_size_);  // for a word that has waited until now
  const bool all_away = away_count_ == size_;
  plan(log, all_away);
  if (all_away && last_joined_ >= 0) {
    log.emplace_back(Joined{options_.ranks[static_cast<size_t>(std::exchange(last_joined_, -1))]});
    std::fill(joined_.begin(), joined_.end(), false);
    away_count_ = shut_count_;
  }
  if (shut_count_ == size_ && all_drained()) {
    HORON_CHECK(planner_.empty(), "entries are left at the end of the log");
    log.emplace_back(Bye{});
    ended_ = true;
  }
  freezer_.freeze(log, log_size_, away_count_ > 0);
  log_size_ += log.size();
  return log;
}

void Coordinator::close(Entry& entry, std::vector<Item>& log) {
  if (is_served_eagerly(entry)) {  // each member knows it
    (void)end_round(entry.name);
    ++eager_served_;
    return;
  }
  if (std::optional<Fail> fail = verdict(entry)) {
    freezer_.break_row(entry.name);
    fail->round = end_round(entry.name);
    log.emplace_back(*std::move(fail));
    return;
  }
  // Also true if all members have joined or left.
  const bool all_absent = std::all_of(entry.votes.begin(), entry.votes.end(), [](const Vote& vote) {
    return vote.kind == Vote::Kind::None ||
           (!vote.absent.empty() &&
            std::find(vote.absent.begin(), vote.absent.end(), false) == vote.absent.end());
  });
  if (all_absent) {
    freezer_.break_row(entry.name);
    log.emplace_back(Unused{entry.name, end_round(entry.name)});
    return;
  }
  if (planner_.empty()) awaited_batches_ = batches_planned_;
  planner_.add(closed(entry));
}

std::optional<Fail> Coordinator::verdict(const Entry& entry) const {
  std::vector<int> left;
  std::vector<int> joined;
  for (size_t member = 0; member < entry.votes.size(); ++member) {
    if (entry.votes[member].kind != Vote::Kind::None) continue;
    (joined_[member] ? joined : left).push_back(static_cast<int>(member));
  }
  if (!left.empty()) {
    return Fail{entry.name, ErrorCode::RankLeft,
                concat("tensor \"", entry.name, "\" can't complete: ", name_members(left),
                       left.size() == 1 ? " has" : " have",
                       options_.may_leave ? " left the process set, or shut down," : " shut down",
                       " without submitting it. Every rank must submit the same tensors before it "
                       "leaves.")};
  }
  if (entry.refused) {
    for (size_t member = 0; member < entry.votes.size(); ++member) {
      if (entry.votes[member].kind != Vote::Kind::Refused) continue;
      return Fail{entry.name, ErrorCode::InvalidArgument,
                  concat("tensor \"", entry.name, "\" was refused on rank ", options_.ranks[member],
                         ": ", without_name(entry.votes[member].refusal, entry.name))};
    }
  }
  if (entry.disagree) return Fail{entry.name, ErrorCode::Mismatch, mismatch_text(entry)};
  if (joined.empty()) return std::nullopt;
  return fault_of_joined(entry, joined);
}

ClosedEntry Coordinator::closed(const Entry& entry) const {
  ClosedEntry out;
  out.name = entry.name;
  // If all want it: an entry that one of them never sends so would not freeze either.
  out.eager = options_.eager;
  bool some_absent = false;
  for (size_t member = 0; member < entry.votes.size(); ++member) {
    const Vote& vote = entry.votes[member];
    if (vote.kind == Vote::Kind::None) {
      out.joined.push_back(static_cast<int>(member));
      continue;
    }
    if (out.spec == nullptr) out.spec = vote.spec;
    out.eager = out.eager && vote.wants_eager;
    some_absent = some_absent || !vote.absent.empty();
  }
  for (size_t member = 0; member < entry.votes.size(); ++member) {
    std::vector<int64_t> said = entry.votes[member].extents;
    said.resize(extents_said(*out.spec, member));  // a member that has joined has no rows
    out.extents.insert(out.extents.end(), said.begin(), said.end());
  }
  if (!some_absent) return out;
  out.produced.assign(out.spec->parts.size(), false);
  for (const Vote& vote : entry.votes) {
    if (vote.kind == Vote::Kind::None) continue;
    for (size_t part = 0; part < out.produced.size(); ++part) {
      if (vote.absent.empty() || !vote.absent[part]) out.produced[part] = true;
    }
  }
  return out;
}

// While enough batches run, planning waits, so that more entries fuse. Batches that the gate starts
// meanwhile do not count: they start without the planner, and a steady stream of them would delay
// it for ever.
bool Coordinator::planning_waits() const {
  if (planner_.ready_bytes() >= planner_.bytes_max()) return false;
  const auto running =
      static_cast<int64_t>(awaited_batches_) - static_cast<int64_t>(batches_enqueued_);
  return running >= options_.batches_in_flight_max;
}

void Coordinator::plan(std::vector<Item>& log, bool everything) {
  Plan plan;
  while (!planner_.empty() && (everything || !planning_waits())) {
    PlannedBatch batch;
    const bool idle = in_flight_ == 0;
    std::vector<ClosedEntry> entries = planner_.take_batch();
    batch.joined = entries.front().joined;
    // The gate fuses fewer broadcasts than the planner, since it does not wait for other entries.
    // So a broadcast may freeze only if nothing else ran or waited.
    const bool alone = entries.size() == 1 && idle && planner_.empty();
    const bool may_freeze = alone || entries.front().spec->kind != CollectiveKind::Broadcast;
    for (ClosedEntry& entry : entries) {
      batch.entries.push_back(planned(std::move(entry), may_freeze));
    }
    plan.batches.push_back(std::move(batch));
    ++in_flight_;
    awaited_batches_ = ++batches_planned_;
  }
  if (!plan.batches.empty()) log.emplace_back(std::move(plan));
}

PlannedEntry Coordinator::planned(ClosedEntry entry, bool may_freeze) {
  PlannedEntry out;
  out.round = end_round(entry.name);
  out.id = ids_.find(entry.name, entry.spec);
  const bool is_new = out.id == kNoId;
  if (is_new) {
    out.id = ids_.give(entry.name, entry.spec, entry.eager);
    freezer_.break_row(entry.name);  // the id may have stood for a spec that was planned before
  }
  if (options_.eager) {
    ids_.note_plan(out.id);
    may_freeze = may_freeze && !ids_.is_eager(out.id);
  }
  const bool each_is_told_its_own = entry.spec->kind == CollectiveKind::Alltoall;
  const size_t numbers_told =
      each_is_told_its_own ? extents_told(*entry.spec, options_.ranks) : entry.extents.size();
  freezer_.planned(out.id, entry, numbers_told, may_freeze);
  out.produced = std::move(entry.produced);
  if (each_is_told_its_own) {
    out.said_by_all =
        std::make_shared<const SaidByAll>(std::move(entry.extents), options_.ranks.size());
  } else {
    out.extents = std::move(entry.extents);
  }
  if (!is_new) return out;
  out.name = std::move(entry.name);
  out.spec = std::move(entry.spec);
  out.eager = entry.eager;
  return out;
}

}  // namespace horon::core
