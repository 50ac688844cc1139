// Checks what a rank starts: the same batches on all ranks, of tensors that were submitted.
#include <algorithm>
#include <string>

#include "horon/core/base/text.h"
#include "horon/tests/support/simulation/simulated_cluster.h"

namespace horon::simulation {
namespace {

using core::concat;

// What the entries of one batch have in common: all of the collective but the tensors themselves.
core::EntrySpec collective_of(const core::EntrySpec& spec) {
  core::EntrySpec out = spec;
  out.parts.clear();
  return out;
}

}  // namespace

void SimulatedCluster::start(int rank, const core::StartBatch& start) {
  ++progress_;
  if (start.sequence != at(rank).started++) violate(concat("rank ", rank, " skips a batch"));
  if (start.sequence >= batches_.size()) {
    Batch& fresh = batches_.emplace_back();
    fresh.first = start;
    fresh.contributions.resize(start.entries.size());
    for (const Rank& other : ranks_) fresh.lost = fresh.lost || other.dead;
  }
  Batch& batch = batches_[start.sequence];
  compare(rank, start, batch.first);
  rows_.note_start(rank, start);
  std::string names;
  for (size_t i = 0; i < start.entries.size(); ++i) {
    const core::StartEntry& entry = start.entries[i];
    names += concat(i > 0 ? ", " : "", entry.name, entry.ticket ? "" : " (joined)");
    if (entry.ticket) add_contribution(rank, start, i, batch);
    if (collective_of(*entry.spec) != collective_of(*start.entries.front().spec)) {
      violate(concat("batch ", start.sequence, " fuses \"", entry.name, "\" with \"",
                     start.entries.front().name, "\", which is another collective"));
    }
  }
  if (options_.trace) {
    note(concat(rank, ": starts batch ", start.sequence, ": ", names, " (", start.contributors,
                " contributors)"));
  }
  if (++batch.started < size()) return;
  runnable_.push_back(start.sequence);
  for (size_t i = 0; i < batch.contributions.size(); ++i) {
    Outcome& outcome = batch.results.emplace_back();
    outcome.kind = Outcome::Kind::Ran;
    outcome.contributors = batch.first.contributors;
    outcome.produced = batch.first.entries[i].produced;
    outcome.extents = rows_.said(batch.first, i, size());
    std::vector<Contribution>& data = batch.contributions[i];
    std::sort(data.begin(), data.end());
    outcome.contributions = std::make_shared<const std::vector<Contribution>>(std::move(data));
  }
}

void SimulatedCluster::add_contribution(int rank, const core::StartBatch& start, size_t entry,
                                        Batch& batch) {
  const Contribution own{rank, *start.entries[entry].ticket};
  const Action& action = at(rank).program.at(own.action);
  if (action.kind != Action::Kind::Submit || action.name != start.entries[entry].name ||
      !(*action.spec == *start.entries[entry].spec)) {
    violate(concat("rank ", rank, " starts \"", start.entries[entry].name,
                   "\" with what is no submission of it"));
  }
  if (!used_.insert(own).second) {
    violate(concat("action ", own.action, " of rank ", rank, " is used twice"));
  }
  if (entry < batch.contributions.size()) batch.contributions[entry].push_back(own);
}

// The elements of all ranks have come with their votes: no record says that the entry is served.
void SimulatedCluster::gather(int rank, const core::GatheredEntry& gathered) {
  ++progress_;
  std::vector<Contribution> data;
  for (size_t member = 0; member < gathered.elements.size(); ++member) {
    const auto sender = static_cast<int>(member);
    const auto sent = contribution_of(gathered.elements[member]).value_or(Contribution{-1, 0});
    const Program& program = at(sender).program;
    const bool known = sent.rank == sender && sent.action < program.size();
    // A message that is damaged on its way may be one with elements.
    if (!options_.corrupt && (!known || program[sent.action].name != gathered.name)) {
      violate(concat("rank ", rank, " has elements of \"", gathered.name, "\" that rank ", sender,
                     " has not sent for it"));
    }
    data.push_back(sent);
  }
  const Contribution own{rank, gathered.ticket};
  if (data.size() != ranks_.size() || data[static_cast<size_t>(rank)] != own) {
    violate(concat("rank ", rank, " does not find its own elements in \"", gathered.name, "\""));
  }
  if (!used_.insert(own).second) {
    violate(concat("action ", own.action, " of rank ", rank, " is used twice"));
  }
  if (options_.trace) note(concat(rank, ": has all elements of ", gathered.name));
  Outcome outcome;
  outcome.kind = Outcome::Kind::Ran;
  outcome.contributors = size();
  outcome.contributions = std::make_shared<const std::vector<Contribution>>(std::move(data));
  settle(rank, own.action, std::move(outcome));
}

void SimulatedCluster::compare(int rank, const core::StartBatch& start,
                               const core::StartBatch& first) {
  const auto same = [](const core::StartEntry& a, const core::StartEntry& b) {
    // If the first dimension is each rank's own, only the kinds of the specs are compared.
    const bool own_rows = core::has_own_rows(a.spec->kind);
    const bool specs = own_rows ? b.spec->kind == a.spec->kind : *a.spec == *b.spec;
    const bool rows = a.extents == b.extents || a.spec->kind == CollectiveKind::Alltoall;
    return a.name == b.name && specs && a.produced == b.produced && rows;
  };
  const bool equal =
      start.contributors == first.contributors && start.entries.size() == first.entries.size() &&
      std::equal(start.entries.begin(), start.entries.end(), first.entries.begin(), same);
  if (!equal) violate(concat("rank ", rank, " starts another batch ", start.sequence));
}

}  // namespace horon::simulation
