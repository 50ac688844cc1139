#include "horon/core/negotiation/member.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/agreement.h"
#include "horon/core/negotiation/broken_log.h"
#include "horon/core/negotiation/told_extents.h"

namespace horon::core {

Member::Member(Options options)
    : options_(std::move(options)),
      index_(options_.index),
      ranks_(options_.ranks),
      size_(static_cast<int>(ranks_.size())),
      eager_votes_(ranks_.size()),
      frozen_(options_.alone_bytes) {}

void Member::submit(Request request, Effects& effects) {
  const auto reject = [&](ErrorCode code, const std::string& text) {
    effects.finished.push_back({request.ticket, Error(code, text)});
  };
  if (leaving_) {
    return reject(ErrorCode::NotInitialized,
                  concat("tensor \"", request.name, "\" was submitted after shutdown()"));
  }
  if (join_ticket_) {
    return reject(
        ErrorCode::InvalidArgument,
        concat("tensor \"", request.name,
               "\" was submitted while join() waits on this rank; submit it before join() or "
               "after join() has returned"));
  }
  FrozenEntries::Entry* const frozen = frozen_.find(request.name);
  const auto known = unserved_.empty() ? unserved_.end() : unserved_.find(request.name);
  const bool filled = frozen != nullptr && frozen->filled;
  if (filled || (known != unserved_.end() && !known->second.last().refused)) {
    return reject(ErrorCode::DuplicateName,
                  concat("tensor \"", request.name,
                         "\" was submitted again before its first submission has completed; wait "
                         "for it, or give the second one another name"));
  }
  if (frozen != nullptr && known == unserved_.end() && FrozenEntries::fits(*frozen, request)) {
    return fill(*frozen, std::move(request));
  }
  const std::string name = request.name;
  vote(name, Vote{false, {}, std::move(request)});
}

void Member::vote(const std::string& name, Vote vote) {
  const auto [entry, fresh] = unserved_.try_emplace(name);
  if (!fresh) {
    entry->second.held.push_back(std::move(vote));
    ++held_;
    return;
  }
  if (FrozenEntries::Entry* const frozen = frozen_.find(name)) {
    deviate(*frozen);
  } else {
    say(name, vote);
  }
  entry->second.said = std::move(vote);
}

void Member::say(const std::string& name, const Vote& vote) {
  if (vote.refused) {
    news_.emplace_back(Refused{name, vote.refusal});
  } else {
    say_ready(vote.request);
  }
}

void Member::say_ready(const Request& request) {
  Ready ready;
  ready.id = ids_.find(request.name, request.spec);
  if (options_.sends_eagerly && request.eager && ids_.is_eager(ready.id)) {
    Eager eager{ready.id, eager_votes_.round(ready.id), request.elements};
    eager_votes_.keep(static_cast<size_t>(index_), eager);
    eager_news_.push_back(std::move(eager));
    return;
  }
  if (ready.id == kNoId) {
    ready.name = request.name;
    ready.spec = request.spec;
    ready.eager = request.eager;
  }
  ready.absent = request.absent;
  ready.extents = request.extents;
  news_.emplace_back(std::move(ready));
}

void Member::refuse(const std::string& name, const std::string& text) {
  if (leaving_ || join_ticket_) return;
  const auto known = unserved_.find(name);
  // A refusal of a name that is in flight is not sent: the other ranks have no entry to fail.
  if (known != unserved_.end() && !known->second.last().refused) return;
  const FrozenEntries::Entry* const frozen = frozen_.find(name);
  if (frozen != nullptr && frozen->filled) return;
  vote(name, Vote{true, text, {}});
}

bool Member::has_said(const std::string& name) {
  const FrozenEntries::Entry* const frozen = frozen_.find(name);
  return unserved_.contains(name) || (frozen != nullptr && frozen->filled);
}

void Member::join(Ticket ticket, Effects& effects) {
  if (leaving_ || join_ticket_) {
    effects.finished.push_back(
        {ticket, Error(ErrorCode::InvalidArgument,
                       "join() was called while an earlier join() waits, or after shutdown()")});
    return;
  }
  join_ticket_ = ticket;
  say_away();
}

void Member::shutdown() {
  if (leaving_) return;
  leaving_ = true;
  say_away();
}

void Member::say_away() {
  if (held_ > 0) return;
  const bool joins = join_ticket_ && !last_joined_;
  if (joins && !std::exchange(join_said_, true)) news_.emplace_back(Join{});
  if (leaving_ && !std::exchange(leaving_said_, true)) news_.emplace_back(Shutdown{});
  say_drained();
}

void Member::say_away_again() {
  // A Join or Shutdown that has not been sent yet must follow the votes that are said again.
  std::erase_if(news_, is_away_item);
  join_said_ = false;
  leaving_said_ = false;
  drained_said_ = 0;
  say_away();
}

void Member::batch_finished() {
  HORON_CHECK(batches_running() > 0, "a batch ends that was not started");
  ++batches_ended_;
  say_drained();
}

void Member::say_drained() {
  const uint64_t ended = batches_ended_ + statistics_.eager_starts;
  if (!leaving_said_ || batches_running() > 0 || drained_said_ == ended) return;
  drained_said_ = ended;
  news_.emplace_back(Drained{ended});
}

// After Joined. The coordinator may have the elements of all members before this one has: what was
// submitted before join() ends before it.
void Member::end_join(Effects& effects) {
  if (!unserved_.empty()) return;
  effects.finished.push_back({*join_ticket_, std::nullopt, *last_joined_});
  join_ticket_.reset();
  last_joined_.reset();
  join_said_ = false;
}

void Member::hear(const Item& record, Effects& effects) {
  if (log_.empty() && may_apply(record)) return apply(record, effects);
  log_.push_back(record);
  advance(effects);
}

bool Member::advance(Effects& effects) {
  // While earlier batches run, the Go of small entries is held back, so that they fuse. Batches
  // that start later do not count, else a steady stream of them would hold it back for ever.
  if (batches_enqueued_ + static_cast<uint64_t>(options_.batches_in_flight_max) > owed_since_ ||
      owed_bytes_ >= options_.fusion_bytes_max) {
    append_owed_gos();
  }
  append_copies();
  bool any = false;
  for (;;) {
    for (; !log_.empty() && may_apply(log_.front()); any = true) {
      const Item record = std::move(log_.front());
      log_.pop_front();
      apply(record, effects);
    }
    // With nothing frozen there is no need to wait: every Go that is still unread is void.
    const bool waits_for_records = frozen_.any() && applied_ < permitted_;
    if (waits_for_records || options_.gate == nullptr) return any;
    const std::optional<RingItem> item = options_.gate->next(applied_);
    if (!item) return any;
    if (item->kind == RingItem::Kind::Filled) {
      // If it has been thawed since, each member negotiates it again.
      const bool is_frozen = frozen_.find(static_cast<Place>(item->value)) != nullptr;
      if (options_.first_of_host && is_frozen) news_.emplace_back(*item);
    } else if (item->kind == RingItem::Kind::Marker) {
      any = any || !chain_.empty();
      start_chain(effects);  // before the next records, which may thaw its entries
      permitted_ = item->value;
    } else {
      take_go(*item, effects);
      any = true;
    }
  }
}

void Member::apply(const Item& record, Effects& effects) {
  if (ended_) broken("the log goes on after its end");
  ++applied_;
  std::visit(Overloaded{
                 [&](const Plan& plan) { apply(plan, effects); },
                 [&](const Fail& fail) { apply(fail, effects); },
                 [&](const Unused& unused) {
                   end_eager_round(unused.name);
                   serve(unused.name, effects, std::nullopt);
                 },
                 [&](const Joined& joined) {
                   if (!join_ticket_) return;  // this rank called shutdown(), not join()
                   last_joined_ = joined.last;
                   end_join(effects);
                 },
                 [&](const Freeze& freeze) { apply(freeze); },
                 [&](const Thaw& thaw) { apply(thaw); },
                 [&](const Bye&) {
                   if (frozen_.any()) broken("the log ended while something is frozen");
                   if (!unserved_.empty()) broken("the log ended with entries unserved");
                   if (!leaving_) broken("the log ended before this rank has left");
                   if (batches_running() > 0) broken("the log ended while a batch runs here");
                   ended_ = true;
                   effects.bye = true;
                 },
                 [](const auto&) { broken("an item that is no record stands in the log"); },
             },
             record);
}

void Member::apply(const Plan& plan, Effects& effects) {
  details_.clear();
  for (const PlannedBatch& batch : plan.batches) {
    check(batch);
    const bool joined_here = std::binary_search(batch.joined.begin(), batch.joined.end(), index_);
    StartBatch start;
    start.sequence = batches_started_++;
    start.contributors = size_ - static_cast<int>(batch.joined.size());
    for (const PlannedEntry& planned : batch.entries) {
      start.entries.push_back(start_entry(planned, joined_here));
    }
    effects.starts.push_back(std::move(start));
    statistics_.negotiated_starts += batch.entries.size();
    ++statistics_.negotiated_batches;
  }
}

void Member::check(const PlannedBatch& batch) const {
  if (batch.entries.empty()) broken("a plan holds an empty batch");
  const std::vector<int>& joined = batch.joined;
  const bool ascending =
      std::adjacent_find(joined.begin(), joined.end(), std::greater_equal<>()) == joined.end();
  const bool in_range = joined.empty() || (joined.front() >= 0 && joined.back() < size_);
  if (!ascending || !in_range || joined.size() >= static_cast<size_t>(size_)) {
    broken("a plan names joined ranks that can't be");
  }
}

std::pair<std::string, SpecPtr> Member::learn(const PlannedEntry& planned) {
  if (planned.spec == nullptr) {
    const EntryIds::Known* const known = ids_.get(planned.id);
    if (known == nullptr) broken("a plan names an id that was never agreed");
    end_eager_round(known->name);
    if (options_.sends_eagerly) ids_.note_plan(planned.id);
    return {known->name, known->spec};
  }
  end_eager_round(planned.name);
  if (planned.id != kNoId && !ids_.note(planned.id, planned.name, planned.spec, planned.eager)) {
    broken("a plan gives an id that is taken, or out of turn");
  }
  if (options_.sends_eagerly) ids_.note_plan(planned.id);
  return {planned.name, planned.spec};
}

void Member::check(const PlannedEntry& planned, const std::string& name,
                   const EntrySpec& spec) const {
  if (!planned.produced.empty() && planned.produced.size() != spec.parts.size()) {
    broken(concat("the plan's flags for \"", name, "\" do not fit its tensors"));
  }
  const bool scalar_part = std::any_of(spec.parts.begin(), spec.parts.end(),
                                       [](const TensorPart& part) { return part.shape.empty(); });
  if (has_own_rows(spec.kind) && (spec.parts.empty() || scalar_part)) {
    broken(concat("a plan divides \"", name, "\", which has no rows"));
  }
  const std::vector<int64_t>& extents = planned.extents;
  const bool negative =
      std::any_of(extents.begin(), extents.end(), [](int64_t e) { return e < 0; });
  if (extents.size() != extents_told(spec, ranks_) || negative) {
    broken(concat("the plan's extents for \"", name, "\" can't be"));
  }
}

StartEntry Member::start_entry(const PlannedEntry& planned, bool joined_here) {
  StartEntry entry;
  std::tie(entry.name, entry.spec) = learn(planned);
  check(planned, entry.name, *entry.spec);
  entry.produced = planned.produced;
  entry.extents = planned.extents;
  if (joined_here) return entry;
  const auto own = unserved_.find(entry.name);
  if (own == unserved_.end() || own->second.said.refused) {
    broken(concat("a plan holds \"", entry.name, "\", which is not unserved here"));
  }
  const Request& request = own->second.said.request;
  if (request.spec != entry.spec && !agree(*request.spec, *entry.spec)) {
    broken(concat("a plan holds \"", entry.name, "\" with another spec than this rank's"));
  }
  if (planned.id != kNoId) ids_.expect(planned.id, request.spec);
  note_details(planned, request);
  entry.ticket = request.ticket;
  entry.spec = request.spec;
  unserved_.erase(own);
  return entry;
}

void Member::apply(const Fail& fail, Effects& effects) {
  end_eager_round(fail.name);
  serve(fail.name, effects, Error(fail.code, fail.text));
}

void Member::serve(const std::string& name, Effects& effects, const std::optional<Error>& error) {
  const auto own = unserved_.find(name);
  if (own == unserved_.end()) return;  // this member has joined or left
  auto& [said, held] = own->second;
  if (!said.refused) effects.finished.push_back({said.request.ticket, error});
  if (held.empty()) {
    unserved_.erase(own);
    return;
  }
  said = std::move(held.front());
  held.erase(held.begin());
  --held_;
  say(name, said);
  say_away();
}

void Member::fail_all(const Error& error, Effects& effects) {
  for (auto& [name, unserved] : unserved_) {
    unserved.held.push_back(std::move(unserved.said));
    for (const Vote& vote : unserved.held) {
      if (!vote.refused) effects.finished.push_back({vote.request.ticket, error});
    }
  }
  for (const Request& request : frozen_.clear()) {
    effects.finished.push_back({request.ticket, error});
  }
  owed_gos_.clear();
  owed_bytes_ = 0;
  chain_.clear();
  log_.clear();
  unserved_.clear();
  held_ = 0;
  if (join_ticket_) effects.finished.push_back({*join_ticket_, error});
  join_ticket_.reset();
  last_joined_.reset();
  news_.clear();
  eager_news_.clear();
  eager_votes_.clear();
}

bool Member::awaits_results() const {
  return frozen_.filled() > 0 || join_ticket_.has_value() ||
         std::any_of(unserved_.begin(), unserved_.end(),
                     [](const auto& entry) { return !entry.second.last().refused; });
}

}  // namespace horon::core
