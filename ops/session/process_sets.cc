#include "horon/ops/session/process_sets.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/execution/executor.h"
#include "horon/ops/builtin.h"
#include "horon/ops/session/communicator_maker.h"
#include "horon/ops/session/session_collectives.h"

namespace horon::ops {
namespace {

using core::concat;

// Ranks that wait for a communicator tell each other so this often: then the runtime sees who does
// not answer.
constexpr auto kReportInterval = std::chrono::seconds(1);
// How far a rank has come with its communicator: one letter, and the text of a failure.
constexpr std::string_view kReady = "r";
constexpr std::string_view kWaiting = "w";
// The same for all sets: a name that is new with each set would use up the table of names. Which
// set is meant stands in what travels.
constexpr const char* kAdd = "horon.add_process_set";
constexpr const char* kCommunicator = "horon.add_process_set.communicator";
constexpr const char* kMade = "horon.add_process_set.made";
constexpr const char* kRemove = "horon.remove_process_set";

std::string call_text(const std::vector<int>& ranks) {
  return concat("add_process_set({", core::list_ranks(ranks), "})");
}

}  // namespace

std::string exact_list(const std::vector<int>& ranks) {
  constexpr size_t kPlainMax = 16;  // what list_ranks() shows in full
  if (ranks.size() <= kPlainMax) return core::list_ranks(ranks);
  std::string text;
  for (size_t first = 0, next = 0; first < ranks.size(); first = next) {
    const int step = first + 1 < ranks.size() ? ranks[first + 1] - ranks[first] : 1;
    next = first + 1;
    while (next < ranks.size() && ranks[next] - ranks[next - 1] == step) ++next;
    const bool is_run = next - first > 2;
    if (!is_run) next = first + 1;
    text += concat(first > 0 ? ", " : "", ranks[first]);
    if (is_run) text += concat(" to ", ranks[next - 1], step > 1 ? concat(" by ", step) : "");
  }
  constexpr size_t kTextMax = 1000;
  if (text.size() <= kTextMax) return text;
  return concat(text.substr(0, kTextMax), "... (", ranks.size(), " in all, with the hash ",
                core::hash_of(text), ")");
}

ProcessSets::ProcessSets(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
                         const core::Config& config)
    : library_(library), bootstrap_(bootstrap), topology_(bootstrap.topology()), config_(config) {}

void ProcessSets::refuse_wrong_ranks(const std::vector<int>& ranks) {
  std::string fault;
  if (ranks.empty()) fault = "it has no ranks";
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    fault = "a rank is there twice";
  }
  if (!ranks.empty() && (ranks.front() < 0 || ranks.back() >= topology_.size)) {
    fault = concat("its ranks must be 0 to ", topology_.size - 1);
  }
  if (fault.empty()) return;
  fault = concat(call_text(ranks), ": ", fault);
  runtime_->refuse(kAdd, fault);
  throw Error(ErrorCode::InvalidArgument, fault);
}

ProcessSet ProcessSets::add(std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  const uint32_t id = ++calls_;
  std::sort(ranks.begin(), ranks.end());
  refuse_wrong_ranks(ranks);
  meet(*runtime_, kAdd, concat("process set ", id, " of ranks ", exact_list(ranks)));
  make_communicator(ranks);
  runtime_->add_set(id, ranks);
  meet(*runtime_, kMade, concat("process set ", id));  // nobody uses it before all have it
  sets_.emplace_back(id, std::move(ranks), topology_.rank);
  return sets_.back();
}

// Collective over all ranks, also those that are not in the set: they hear what went wrong.
void ProcessSets::make_communicator(const std::vector<int>& ranks) {
  // Where only one thread at a time may call MPI, the runtime thread makes it, in make_resources().
  if (!library_.allows_threads_at_once()) return;
  std::optional<CommunicatorMaker> maker;
  std::string fault;
  if (std::binary_search(ranks.begin(), ranks.end(), topology_.rank)) {
    try {
      maker.emplace(library_, bootstrap_, ranks);
    } catch (const std::exception& error) {
      fault = error.what();
    }
  }
  std::vector<std::string> states;
  do {
    std::string state(kReady);
    if (maker && !maker->wait(kReportInterval)) state = kWaiting;
    if (maker && state == kReady) fault = maker->failure();
    if (!fault.empty()) state = fault;
    states = gather_from_all(*runtime_, kCommunicator, state);
    for (size_t rank = 0; rank < states.size(); ++rank) {
      if (states[rank] == kReady || states[rank] == kWaiting) continue;
      throw Error(ErrorCode::OperationFailed,
                  concat(call_text(ranks), ": ", states[rank], " (on rank ", rank, ")"));
    }
  } while (std::find(states.begin(), states.end(), kWaiting) != states.end());
  if (maker) prepared_ = maker->take();
}

core::SetResources ProcessSets::make_resources(const std::vector<int>& ranks) {
  std::shared_ptr<MpiCommunicator> communicator = std::move(prepared_);
  if (communicator == nullptr) {
    communicator = std::make_shared<MpiCommunicator>(bootstrap_, ranks);
  }
  BuiltinParts builtin;
  builtin.topology = &topology_;
  builtin.config = &config_;
  builtin.mpi_communicator = communicator->handle();
  core::Executor::Parts execution;
  execution.rank = core::index_of(topology_.rank, ranks);
  execution.size = static_cast<int>(ranks.size());
  execution.ranks = ranks;
  // The ranks of a set talk over MPI, also on one host.
  const std::string allreduce = config_.allreduce == "shm" ? "auto" : config_.allreduce;
  execution.ops = std::make_shared<core::OpTable>(make_builtin_ops(builtin), allreduce);
  execution.domains = make_builtin_domains(nullptr);
  core::SetResources resources;
  resources.keep_alive = std::move(communicator);
  resources.executor = std::make_unique<core::Executor>(std::move(execution));
  return resources;
}

void ProcessSets::remove(const ProcessSet& set) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(sets_.begin(), sets_.end(),
                                  [&](const ProcessSet& other) { return other.id() == set.id(); });
  if (known == sets_.end()) {
    const std::string fault =
        set.is_world() ? "remove_process_set(): the set of all ranks stays"
                       : concat("remove_process_set(): set ", set.id(), " has been removed before");
    throw Error(ErrorCode::InvalidArgument, fault);
  }
  meet(*runtime_, kRemove, concat("process set ", set.id()));
  runtime_->remove_set(set.id());
  sets_.erase(known);
}

std::vector<ProcessSet> ProcessSets::all() {
  const std::lock_guard lock(mutex_);
  std::vector<ProcessSet> sets = {ProcessSet()};
  sets.insert(sets.end(), sets_.begin(), sets_.end());
  return sets;
}

}  // namespace horon::ops
