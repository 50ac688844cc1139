#include "horon/tests/support/simulation/simulated_cluster.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>

#include "horon/core/base/text.h"
#include "horon/core/negotiation/wire_format.h"

namespace horon::simulation {
namespace {

using core::concat;

size_t hash_of(const core::Item& item) {
  core::Envelope envelope;
  envelope.items.push_back(item);
  const std::vector<std::byte> bytes = core::encode(envelope);
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string calls(const Action& action) {
  return action.kind == Action::Kind::Submit ? action.name : describe(action);
}

Outcome failure(const Error& error) {
  Outcome outcome;
  outcome.kind = Outcome::Kind::Failed;
  outcome.code = error.code();
  outcome.text = error.what();
  return outcome;
}

}  // namespace

SimulatedCluster::SimulatedCluster(Options options, std::vector<Program> programs)
    : options_(std::move(options)) {
  core::Controller::Options controller = options_.controller;
  controller.size = static_cast<int>(programs.size());
  names_ = controller.ranks;
  if (names_.empty()) {
    names_.resize(programs.size());
    std::iota(names_.begin(), names_.end(), 0);
  }
  if (options_.gate) {
    gates_ = std::make_unique<SimulatedGates>(controller.size, controller.host_of,
                                              [this](const std::string& line) { note(line); });
  }
  for (Program& program : programs) {
    if (gates_) controller.gate = gates_->of(static_cast<int>(ranks_.size()));
    controller.rank = static_cast<int>(ranks_.size());
    Rank& rank = ranks_.emplace_back();
    rank.controller = std::make_unique<core::Controller>(controller);
    rank.outcomes.resize(program.size());
    rank.program = std::move(program);
  }
}

bool SimulatedCluster::can_act(int rank) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.dead || r.fatal || r.position >= r.program.size()) return false;
  const Action& action = r.program[r.position];
  if (action.kind != Action::Kind::Wait) return true;
  if (action.name.empty()) return r.pending == 0 && (!r.leaving || r.bye);
  const auto latest = r.latest.find(action.name);
  return latest == r.latest.end() || r.outcomes[latest->second].kind != Outcome::Kind::Pending;
}

void SimulatedCluster::add_action(int rank, Action action) {
  at(rank).program.push_back(std::move(action));
  at(rank).outcomes.emplace_back();
}

void SimulatedCluster::act(int rank) {
  Rank& r = at(rank);
  r.idle = false;
  ++progress_;
  do {
    const size_t index = r.position++;
    if (options_.trace) note(concat(rank, ": ", describe(r.program[index])));
    act_once(rank, r.program[index], index);
  } while (r.position < r.program.size() && r.program[r.position].same_breath);
}

void SimulatedCluster::act_once(int rank, const Action& action, size_t index) {
  Rank& r = at(rank);
  const auto wait_for = [&] {
    r.outcomes[index].kind = Outcome::Kind::Pending;
    ++r.pending;
  };
  switch (action.kind) {
    case Action::Kind::Submit: {
      ++r.votes_said;
      if (const auto last = r.latest.find(action.name);
          last == r.latest.end() || r.outcomes[last->second].kind != Outcome::Kind::Pending) {
        r.latest[action.name] = index;
      }
      wait_for();
      core::Request request;
      request.ticket = index;
      request.name = action.name;
      request.spec = action.spec;
      request.absent = action.absent;
      request.eager = may_be_eager(action) && (index + static_cast<size_t>(rank)) % 5 != 4;
      if (request.eager) request.elements = bytes_of({rank, index});
      request.extents = extents_said(*action.spec, name_of(rank) == action.spec->root, size());
      return r.controller->submit(std::move(request));
    }
    case Action::Kind::Refuse:
      ++r.votes_said;
      return r.controller->refuse(action.name, concat("no good on rank ", rank));
    case Action::Kind::Join:
      wait_for();
      return r.controller->join(index);
    case Action::Kind::Shutdown:
      r.leaving = true;
      return r.controller->shutdown();
    case Action::Kind::Wait:
    case Action::Kind::Think:
      return;
  }
}

void SimulatedCluster::deliver(int from, int to) {
  const auto channel = channels_.find({from, to});
  const Bytes bytes = std::move(channel->second.front());
  channel->second.pop_front();
  if (channel->second.empty()) channels_.erase(channel);
  Rank& r = at(to);
  if (r.dead) return;
  r.idle = false;
  if (!options_.corrupt) {
    for (const core::Item& item : core::decode(bytes).items) {
      const bool question = std::holds_alternative<core::Ping>(item) ||
                            std::holds_alternative<core::Pong>(item) ||
                            std::holds_alternative<core::Stall>(item);
      if (!question) ++progress_;
      if (is_record(item)) r.records.push_back(hash_of(rows_.common(item)));
      if (std::holds_alternative<core::Plan>(item) || std::holds_alternative<core::Freeze>(item) ||
          std::holds_alternative<core::Thaw>(item)) {
        ++r.plans;
      }
    }
  }
  r.controller->receive(from, bytes);
}

bool SimulatedCluster::can_finish(int rank) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.dead || r.fatal || r.finished == r.started) return false;
  const Batch& batch = batches_[r.finished];
  return batch.started == size() && !batch.lost;
}

void SimulatedCluster::finish(int rank) {
  Rank& r = at(rank);
  const Batch& batch = batches_[r.finished++];
  r.idle = false;
  ++progress_;
  if (options_.trace) note(concat(rank, ": batch ", batch.first.sequence, " is over"));
  for (size_t i = 0; i < batch.results.size(); ++i) {
    const std::vector<Contribution>& data = *batch.results[i].contributions;
    const auto own = std::lower_bound(data.begin(), data.end(), Contribution{rank, 0});
    if (own != data.end() && own->rank == rank) settle(rank, own->action, batch.results[i]);
  }
  r.controller->batch_finished();
}

// A runtime does not read the ring of an idle set. So an entry in the ring must have no effect by
// itself.
void SimulatedCluster::tick(int rank, Nanos now) {
  Rank& r = at(rank);
  if (r.idle) flush(rank);
  r.idle = false;
  r.controller->tick(now);
}

void SimulatedCluster::fail(int rank, const Error& error) {
  at(rank).idle = false;
  at(rank).controller->fail(error);
}

void SimulatedCluster::flush(int rank) {
  Rank& r = at(rank);
  if (r.dead) return;
  r.rung = false;
  if (gates_) gates_->look(rank);
  core::Effects effects = r.controller->take_effects();
  const bool any = !effects.messages.empty() || !effects.starts.empty() ||
                   !effects.gathered.empty() || !effects.finished.empty() || effects.fatal ||
                   effects.bye;
  if (r.idle && any) violate(concat("rank ", rank, " was idle and had something to do"));
  r.idle = r.controller->is_idle();
  ring();
  if (r.dies_after_sending && effects.messages.size() > *r.dies_after_sending) {
    effects.messages.resize(*r.dies_after_sending);
    for (const core::Outgoing& message : effects.messages) send(rank, message);
    return die(rank);
  }
  for (const core::Outgoing& message : effects.messages) send(rank, message);
  for (const core::StartBatch& batch : effects.starts) start(rank, batch);
  for (const core::GatheredEntry& entry : effects.gathered) gather(rank, entry);
  for (const core::Finished& finished : effects.finished) {
    Outcome outcome;
    if (finished.error) {
      outcome = failure(*finished.error);
    } else if (finished.last_joined >= 0) {
      outcome.kind = Outcome::Kind::Joined;
      outcome.last_joined = finished.last_joined;
    } else {
      outcome.kind = Outcome::Kind::Unused;
    }
    const Action& action = r.program.at(finished.ticket);
    if (options_.trace) note(concat(rank, ": ", calls(action), " ", describe(outcome)));
    settle(rank, finished.ticket, std::move(outcome));
  }
  for (const std::string& warning : effects.warnings) {
    if (options_.trace) note(concat(rank, " warns: ", warning));
    r.warnings.push_back(warning);
  }
  if (effects.fatal) end(rank, *effects.fatal);
  if (effects.bye) {
    ++progress_;
    if (options_.trace) note(concat(rank, ": bye"));
    if (r.bye || !r.leaving) violate(concat("rank ", rank, " got a Bye that can't be"));
    if (any_batch_runs()) violate(concat("rank ", rank, " got a Bye while a batch runs"));
    r.bye = true;
  }
}

void SimulatedCluster::send(int from, const core::Outgoing& message) {
  Rank& r = at(from);
  if (message.to == from) violate(concat("rank ", from, " sent a message to itself"));
  core::Envelope envelope = core::decode(message.bytes);
  if (envelope.items.empty()) violate(concat("rank ", from, " sent an empty message"));
  for (const core::Item& item : envelope.items) {
    count_words(from, message.to, item);
    if (options_.trace) note(concat(from, " -> ", message.to, ": ", describe(item)));
    // Every member is sent the same log, so the coordinator's own is what the first one is sent.
    if (from == 0 && message.to == 1 && is_record(item))
      r.records.push_back(hash_of(rows_.common(item)));
  }
  if (from == 0 && message.to == 1) count_freezes(envelope.items);
  if (r.votes_sent > r.votes_said) violate(concat("rank ", from, " said a vote twice"));
  const std::span<const std::byte> sent = message.bytes;
  Bytes bytes(sent.begin(), sent.end());  // a copy: a fault concerns this message only
  if (options_.tamper) {
    options_.tamper(from, message.to, envelope);
    bytes = core::encode(envelope);
  }
  if (options_.corrupt) options_.corrupt(from, message.to, bytes);
  channels_[{from, message.to}].push_back(std::move(bytes));
  sent_.emplace_back(from, message.to);
}

void SimulatedCluster::count_words(int from, int to, const core::Item& item) {
  Rank& r = at(from);
  std::visit(core::Overloaded{[&](const core::Ready&) { ++r.votes_sent; },
                              [&](const core::Refused&) { ++r.votes_sent; },
                              [&](const core::Eager&) { r.votes_sent += to == 0 ? 1 : 0; },
                              [&](const core::Join&) { ++r.away_sent; },
                              [&](const core::Shutdown&) { ++r.away_sent; }, [](const auto&) {}},
             item);
}

void SimulatedCluster::count_freezes(const std::vector<core::Item>& records) {
  for (size_t i = 0; i < records.size(); ++i) {
    if (const auto* plan = std::get_if<core::Plan>(&records[i])) {
      for (const core::PlannedBatch& batch : plan->batches) {
        for (const core::PlannedEntry& entry : batch.entries) {
          if (!entry.extents.empty()) ids_with_rows_.insert(entry.id);
        }
      }
    }
    const auto* freeze = std::get_if<core::Freeze>(&records[i]);
    if (freeze == nullptr) continue;
    for (const core::EntryId id : freeze->ids) {
      if (ids_with_rows_.contains(id)) ++at(0).freezes_of_rows;
    }
    // A Thaw directly before a Freeze gives places up. The Thaw of a deviation stands before the
    // plans that are frozen.
    const auto* thaw = i > 0 ? std::get_if<core::Thaw>(&records[i - 1]) : nullptr;
    if (thaw != nullptr) at(0).places_given_up += static_cast<int>(thaw->places.size());
  }
}

void SimulatedCluster::settle(int rank, size_t action, Outcome outcome) {
  Rank& r = at(rank);
  Outcome& place = r.outcomes.at(action);
  ++progress_;
  if (place.kind != Outcome::Kind::Pending) {
    return violate(concat("action ", action, " of rank ", rank, " ended twice"));
  }
  place = std::move(outcome);
  --r.pending;
}

void SimulatedCluster::end(int rank, const Error& error) {
  Rank& r = at(rank);
  ++progress_;
  if (options_.trace) note(concat(rank, ": fatal (", to_string(error.code()), ") ", error.what()));
  if (r.fatal) violate(concat("rank ", rank, " ends twice"));
  r.fatal = error;
  for (size_t action = 0; action < r.outcomes.size(); ++action) {
    if (r.outcomes[action].kind == Outcome::Kind::Pending) settle(rank, action, failure(error));
  }
}

bool SimulatedCluster::can_append(int rank) const {
  return gates_ && !ranks_[static_cast<size_t>(rank)].dead && gates_->owes(rank);
}

void SimulatedCluster::append(int rank) {
  ++progress_;
  gates_->append_owed(rank);
  ring();
}

void SimulatedCluster::ring() {
  if (!gates_) return;
  for (const int rank : gates_->take_woken()) {
    if (at(rank).dead || std::exchange(at(rank).rung, true)) continue;
    woken_.push_back(rank);
  }
}

void SimulatedCluster::die(int rank) {
  at(rank).dead = true;
  ++progress_;
  note(concat(rank, ": dies"));
  for (Batch& batch : batches_) batch.lost = batch.lost || batch.started < size();
  for (uint64_t i = at(rank).finished; i < batches_.size(); ++i) batches_[i].lost = true;
}

void SimulatedCluster::note(const std::string& line) {
  if (!options_.trace) return;
  if (!heading_.empty()) trace_.push_back(std::exchange(heading_, {}));
  trace_.push_back(line);
}

bool SimulatedCluster::any_batch_runs() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
    return !rank.dead && !rank.fatal && rank.finished < batches_.size();
  });
}

void SimulatedCluster::violate(const std::string& text) {
  note("VIOLATION: " + text);
  violations_.push_back(text);
}

}  // namespace horon::simulation
