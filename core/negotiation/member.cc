#include "horon/core/negotiation/member.h"

#include <algorithm>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/agreement.h"

namespace horon::core {
namespace {

[[noreturn]] void broken(const std::string& what) {
  throw Error(ErrorCode::Internal, concat("the coordinator broke the control protocol: ", what));
}

}  // namespace

void Member::submit(Request request, Effects& effects) {
  const auto reject = [&](ErrorCode code, const std::string& text) {
    effects.finished.push_back({request.ticket, Error(code, text)});
  };
  if (leaving_) {
    return reject(ErrorCode::NotInitialized,
                  concat("tensor \"", request.name, "\" was submitted after shutdown()"));
  }
  if (join_ticket_) {
    return reject(ErrorCode::InvalidArgument,
                  concat("tensor \"", request.name, "\" was submitted while join() is waiting"));
  }
  const auto [place, fresh] = unserved_.try_emplace(request.name);
  if (!fresh && place->second.refused) {
    place->second.held.push_back(std::move(request));
    return;
  }
  if (!fresh) {
    return reject(ErrorCode::DuplicateName,
                  concat("tensor \"", request.name,
                         "\" was submitted again before its first submission has completed; wait "
                         "for it, or give the second one another name"));
  }
  say_ready(request);
  place->second.request = std::move(request);
}

void Member::say_ready(const Request& request) {
  Ready ready;
  const auto known = known_.find(request.name);
  if (known != known_.end() &&
      (known->second.spec == request.spec || agree(*known->second.spec, *request.spec))) {
    known->second.spec = request.spec;  // the next comparison is one of pointers
    ready.id = known->second.id;
  } else {
    ready.name = request.name;
    ready.spec = request.spec;
  }
  ready.absent = request.absent;
  if (request.spec->kind == CollectiveKind::Allgather) {
    ready.first_extent = request.spec->parts.at(0).shape.at(0);
  }
  news_.emplace_back(std::move(ready));
}

void Member::refuse(const std::string& name, const std::string& text) {
  if (leaving_ || join_ticket_) return;
  const auto [place, fresh] = unserved_.try_emplace(name);
  if (!fresh) return;  // the first word stands; the caller has its error already
  place->second.refused = true;
  news_.emplace_back(Refused{name, text});
}

void Member::join(Ticket ticket, Effects& effects) {
  if (leaving_ || join_ticket_) {
    effects.finished.push_back(
        {ticket, Error(ErrorCode::InvalidArgument, "join() was called twice or after shutdown()")});
    return;
  }
  join_ticket_ = ticket;
  news_.emplace_back(Join{});
}

void Member::shutdown() {
  if (leaving_) return;
  leaving_ = true;
  news_.emplace_back(Shutdown{});
}

void Member::apply(const Item& record, Effects& effects) {
  ++applied_;
  std::visit(Overloaded{
                 [&](const Plan& plan) { apply(plan, effects); },
                 [&](const Fail& fail) { apply(fail, effects); },
                 [&](const Unused& unused) { serve(unused.name, effects, std::nullopt); },
                 [&](const Joined& joined) {
                   if (!join_ticket_) return;  // it had shut down instead
                   effects.finished.push_back({*join_ticket_, std::nullopt, joined.last});
                   join_ticket_.reset();
                 },
                 [&](const Bye&) {
                   if (!unserved_.empty()) broken("the log ended with entries unserved");
                   effects.bye = true;
                 },
                 [](const auto&) { broken("an item that is no record stands in the log"); },
             },
             record);
}

void Member::apply(const Plan& plan, Effects& effects) {
  for (const PlannedBatch& batch : plan.batches) {
    const bool joined_here =
        std::find(batch.joined.begin(), batch.joined.end(), rank_) != batch.joined.end();
    StartBatch start;
    start.sequence = next_sequence_++;
    start.contributors = size_ - static_cast<int>(batch.joined.size());
    for (const PlannedEntry& planned : batch.entries) {
      start.entries.push_back(start_entry(planned, joined_here));
    }
    effects.starts.push_back(std::move(start));
  }
}

const std::string& Member::learn(const PlannedEntry& planned) {
  if (planned.id == kNoId) return planned.name;
  auto& [name, spec] = by_id_[planned.id];
  if (planned.spec != nullptr) {
    name = planned.name;
    spec = planned.spec;
    known_[name] = {planned.id, spec};
  }
  if (spec == nullptr) broken("a plan names an id that was never agreed");
  return name;
}

StartEntry Member::start_entry(const PlannedEntry& planned, bool joined_here) {
  StartEntry entry;
  entry.name = learn(planned);
  entry.produced = planned.produced;
  entry.first_extents = planned.first_extents;
  if (joined_here) {
    entry.spec = planned.id == kNoId ? planned.spec : by_id_[planned.id].second;
    return entry;
  }
  const auto own = unserved_.find(entry.name);
  if (own == unserved_.end() || own->second.refused) {
    broken(concat("a plan holds \"", entry.name, "\", which is not unserved here"));
  }
  entry.ticket = own->second.request.ticket;
  entry.spec = own->second.request.spec;
  unserved_.erase(own);
  return entry;
}

void Member::apply(const Fail& fail, Effects& effects) {
  serve(fail.name, effects, Error(fail.code, fail.text));
}

bool Member::serve(const std::string& name, Effects& effects, const std::optional<Error>& error) {
  const auto own = unserved_.find(name);
  if (own == unserved_.end()) return false;  // this member has joined or left
  Unserved served = std::move(own->second);
  unserved_.erase(own);
  if (!served.refused) effects.finished.push_back({served.request.ticket, error});
  for (Request& request : served.held) submit(std::move(request), effects);
  return true;
}

void Member::fail_all(const Error& error, Effects& effects) {
  for (auto& [name, unserved] : unserved_) {
    if (!unserved.refused) effects.finished.push_back({unserved.request.ticket, error});
    for (Request& request : unserved.held) effects.finished.push_back({request.ticket, error});
  }
  unserved_.clear();
  if (join_ticket_) effects.finished.push_back({*join_ticket_, error});
  join_ticket_.reset();
  news_.clear();
}

std::vector<std::string> Member::unserved_names() const {
  std::vector<std::string> names;
  for (const auto& [name, unserved] : unserved_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace horon::core
