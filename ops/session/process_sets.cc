#include "horon/ops/session/process_sets.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/builtin.h"
#include "horon/ops/session/members_bootstrap.h"
#include "horon/ops/session/runtime_bootstrap.h"
#include "horon/ops/session/session_collectives.h"

namespace horon::ops {
namespace {

using core::concat;
using core::kFirstNumberedSet;

// The same names for all sets: new names for each set would fill the table of names. The number of
// the set is part of the data.
constexpr const char* kAdd = "horon.add_process_set";
constexpr const char* kCommunicator = "horon.add_process_set.communicator";
constexpr const char* kMade = "horon.add_process_set.made";
constexpr const char* kRemove = "horon.remove_process_set";
constexpr std::string_view kAddAmong = "add_process_set_among";
constexpr std::string_view kRemoveAmong = "remove_process_set";
constexpr const char* kOrder = "horon.order_sets_on_gpus";

std::string call_text(const std::vector<int>& ranks) {
  return concat("add_process_set({", core::list_ranks(ranks), "})");
}

// The messages by which members make a set have one of 1,024 names, used in turn: more would fill
// the table of names, as above. There are several, so that messages left over from an interrupted
// call do not meet those of the next set.
//
// `call`: of the program, for messages.
MembersBootstrap talk_among(core::Runtime& runtime, std::string_view call, uint32_t id,
                            const std::vector<int>& ranks) {
  constexpr uint32_t names = 1024;
  const bool is_group = id >= kFirstNumberedSet + core::kFirstGroupNumber;
  const uint32_t number = id - kFirstNumberedSet - (is_group ? core::kFirstGroupNumber : 0);
  const std::string_view kind = is_group ? "group of torch.distributed " : "process set ";
  const std::string name = concat(kind, number % names, number < names ? "" : " modulo 1024");
  return {runtime, ranks, is_group ? name : concat(name, " (", call, "())"),
          concat(kind, number, " of ranks ", exact_list(ranks))};
}

// True while this lives.
class Marked {
 public:
  explicit Marked(std::atomic<bool>& mark) : mark_(mark) { mark_ = true; }
  ~Marked() { mark_ = false; }
  Marked(const Marked&) = delete;
  Marked& operator=(const Marked&) = delete;

 private:
  std::atomic<bool>& mark_;
};

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

ProcessSets::ProcessSets(Parts parts) : parts_(std::move(parts)) {}

void ProcessSets::refuse_if_closed() const {
  if (closed_) throw Error(ErrorCode::NotInitialized, "horon::shutdown() has been called");
}

std::string ProcessSets::fault_of_ranks(const std::vector<int>& ranks) const {
  const int size = parts_.world->topology().size;
  if (ranks.empty()) return "the list of ranks is empty";
  if (ranks.front() < 0 || ranks.back() >= size) {
    return concat("its ranks must be 0 to ", size - 1);
  }
  if (std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end()) {
    return "a rank is listed twice";
  }
  return "";
}

ProcessSet ProcessSets::add(std::vector<int> ranks) {
  const std::lock_guard lock(calls_mutex_);
  refuse_if_closed();
  const uint32_t id = calls_ + 1;
  std::sort(ranks.begin(), ranks.end());
  if (std::string fault = fault_of_ranks(ranks); !fault.empty()) {
    fault = concat(call_text(ranks), ": ", fault);
    runtime_->refuse(kAdd, fault);
    throw Error(ErrorCode::InvalidArgument, fault);
  }
  meet(*runtime_, kAdd, concat("process set ", id, " of ranks ", exact_list(ranks)));
  calls_ = id;  // on all ranks: where it fails it fails on all
  const Marked making(making_);
  refuse_if_closed();  // again: refuse_calls() may have come before the mark
  const RuntimeBootstrap talk(*runtime_, kCommunicator);
  prepared_ = prepare(talk, call_text(ranks), id, ranks,
                      parts_.gpu == nullptr ? "" : parts_.gpu->unavailable(ranks));
  newest_ops_.reset();
  runtime_->add_set(id, ranks);
  // No member uses the set before all have it. From here on collectives on devices keep an order
  // among sets.
  meet(*runtime_, kMade, concat("process set ", id), parts_.gpu.get());
  if (parts_.gpu != nullptr) parts_.gpu->note_order_of_sets();
  return note(id, std::move(ranks));
}

ProcessSet ProcessSets::add_among(std::vector<int> ranks, uint32_t number) {
  const std::lock_guard lock(calls_mutex_);
  refuse_if_closed();
  std::sort(ranks.begin(), ranks.end());
  const std::string call =
      concat("add_process_set_among({", core::list_ranks(ranks), "}, ", number, ")");
  std::string fault = fault_of_ranks(ranks);
  const int me = parts_.world->topology().rank;
  if (fault.empty() && !std::binary_search(ranks.begin(), ranks.end(), me)) {
    fault = concat("rank ", me, " is not among these ranks; only they call this");
  }
  if (number >= kFirstNumberedSet) fault = "the number must be less than 2^30";
  if (numbers_.contains(number)) fault = "this rank has used the number before; give another one";
  if (!fault.empty()) throw Error(ErrorCode::InvalidArgument, concat(call, ": ", fault));
  // Before anything can fail: a failed call may leave something in MPI under this number.
  numbers_.insert(number);
  const uint32_t id = kFirstNumberedSet + number;
  const Marked making(making_);
  refuse_if_closed();  // again: refuse_calls() may have come before the mark
  prepared_ = prepare(talk_among(*runtime_, kAddAmong, id, ranks), call, id, ranks,
                      parts_.gpu == nullptr ? "" : parts_.gpu->unavailable_alone(ranks));
  runtime_->add_set(id, ranks);
  // No member uses the set before all have it.
  (void)talk_among(*runtime_, kAddAmong, id, ranks).allgather(core::Bootstrap::Among::Job, "");
  return note(id, std::move(ranks));
}

void ProcessSets::order_on_gpus() {
  const std::lock_guard lock(calls_mutex_);
  refuse_if_closed();
  if (parts_.gpu == nullptr || parts_.gpu->keeps_order_of_sets()) return;  // on all ranks alike
  meet(*runtime_, kOrder, "order_sets_on_gpus()", parts_.gpu.get());
  parts_.gpu->note_order_of_sets();
}

ProcessSet ProcessSets::note(uint32_t id, std::vector<int> ranks) {
  const ProcessSet set(id, std::move(ranks), parts_.world->topology().rank, parts_.session);
  const std::lock_guard sets_lock(sets_mutex_);
  sets_.push_back({set, newest_ops_});
  return set;
}

// A rank that does not know that others have given MPI up would wait for them in MPI_Finalize(), so
// the job ends before that. Non-members know nothing of add_among(). Of add(), a rank may know
// nothing whose wait was ended by a signal, or which has left.
ProcessSets::Prepared ProcessSets::prepare(const core::Bootstrap& talk, const std::string& call,
                                           uint32_t id, const std::vector<int>& ranks,
                                           std::string no_gpus) {
  const bool had_mpi = !parts_.maker->gave_mpi_up();
  try {
    return try_to_prepare(talk, call, id, ranks, std::move(no_gpus));
  } catch (...) {
    const bool all_know = id < kFirstNumberedSet && parts_.maker->gave_mpi_up_together();
    if (had_mpi && parts_.maker->gave_mpi_up() && !all_know) {
      const Error error = core::current_error();
      runtime_->fail(Error(error.code(), concat(error.what(), ", and MPI was given up")));
    }
    throw;
  }
}

// Ranks that take part hear what went wrong, also those that are not in the set.
ProcessSets::Prepared ProcessSets::try_to_prepare(const core::Bootstrap& talk,
                                                  const std::string& call, uint32_t id,
                                                  const std::vector<int>& ranks,
                                                  std::string no_gpus) {
  const bool member = std::binary_search(ranks.begin(), ranks.end(), talk.topology().rank);
  CommunicatorMaker::Part part = {call, id, {}};
  if (member) part.members = ranks;
  Prepared prepared;
  prepared.id = id;
  if (no_gpus.empty()) prepared.gpu = parts_.gpu;
  prepared.no_gpus = std::move(no_gpus);
  prepared.communicator = parts_.maker->make(*parts_.world, talk, part);
  try {
    core::run_on_all(talk, [&] {
      if (!member || prepared.communicator->mpi() == nullptr) return;
      try {
        prepared.execution =
            make_execution(*prepared.communicator, *parts_.config, parts_.timeline, prepared.gpu);
      } catch (const Error& error) {
        throw Error(error.code(), concat(call, ": ", error.what()));
      }
    });
  } catch (...) {
    // Freeing it is a call of all members, and this one may be alone: its wait may have been ended
    // by a signal, or another member may be dead or go without freeing it.
    core::keep_for_ever(std::move(prepared.communicator));
    throw;
  }
  return prepared;
}

core::SetResources ProcessSets::make_resources() {
  Prepared prepared = std::move(prepared_);
  const std::shared_ptr<Communicator> communicator = std::move(prepared.communicator);
  try {
    if (!prepared.execution) {
      parts_.maker->connect(*communicator, prepared.id);
      prepared.execution =
          make_execution(*communicator, *parts_.config, parts_.timeline, prepared.gpu);
    }
    std::unique_ptr<core::Gate> gate = make_gate(*communicator, *parts_.config);
    core::SetResources resources(communicator,
                                 std::make_unique<core::Executor>(std::move(*prepared.execution)),
                                 std::move(gate));
    resources.reduce = make_eager_reduction(*communicator, *parts_.config);
    newest_ops_ = resources.executor->lent_ops();
    constexpr auto kGpus = static_cast<size_t>(DeviceKind::Cuda);
    resources.unavailable[kGpus] = std::move(prepared.no_gpus);
    resources.mixed[kGpus] =
        prepared.gpu != nullptr && prepared.gpu->mixed(communicator->members());
    return resources;
  } catch (...) {
    // That ends the job, and the other members may not free it.
    core::keep_for_ever(communicator);
    throw;
  }
}

void ProcessSets::remove(const ProcessSet& set) {
  const std::lock_guard lock(calls_mutex_);
  refuse_if_closed();
  {
    const std::lock_guard sets_lock(sets_mutex_);
    require_known(set, "remove_process_set()");
  }
  if (set.id() >= kFirstNumberedSet) {
    (void)talk_among(*runtime_, kRemoveAmong, set.id(), set.ranks())
        .allgather(core::Bootstrap::Among::Job, "");
  } else {
    meet(*runtime_, kRemove, concat("process set ", set.id()));
  }
  runtime_->remove_set(set.id());
  const std::lock_guard sets_lock(sets_mutex_);
  std::erase_if(sets_, [&](const Known& known) { return known.set.id() == set.id(); });
}

// Takes only the second mutex: a thread that waits for other ranks holds the first one.
void ProcessSets::leave(const ProcessSet& set) {
  const std::lock_guard sets_lock(sets_mutex_);
  refuse_if_closed();
  require_known(set, "leave_process_set()");
  if (set.id() < kFirstNumberedSet) {
    throw Error(ErrorCode::InvalidArgument,
                concat("leave_process_set(): all ranks have made process set ", set.id(),
                       "; call remove_process_set() on all of them instead"));
  }
  runtime_->leave_set(set.id());
  std::erase_if(sets_, [&](const Known& known) { return known.set.id() == set.id(); });
}

void ProcessSets::require_known(const ProcessSet& set, const char* call) const {
  if (set.is_world()) {
    throw Error(ErrorCode::InvalidArgument,
                concat(call, ": the set of all ranks can't be removed"));
  }
  if (std::any_of(sets_.begin(), sets_.end(),
                  [&](const Known& known) { return known.set.id() == set.id(); })) {
    return;
  }
  throw Error(ErrorCode::InvalidArgument,
              concat(call, ": ", core::set_text(set.id()), " has been removed before"));
}

std::vector<ProcessSet> ProcessSets::all() const {
  const std::lock_guard lock(sets_mutex_);
  std::vector<ProcessSet> sets = {ProcessSet()};
  for (const Known& known : sets_) sets.push_back(known.set);
  return sets;
}

std::vector<std::string> ProcessSets::explain(const ProcessSet& set,
                                              const core::BatchFacts& facts) const {
  const std::lock_guard lock(sets_mutex_);
  const auto known = std::find_if(sets_.begin(), sets_.end(),
                                  [&](const Known& one) { return one.set.id() == set.id(); });
  std::vector<std::string> lines;
  const auto explain = [&](const core::OpTable& ops) { lines = ops.explain(facts); };
  if (known == sets_.end() || known->ops == nullptr || !known->ops->ask(explain)) {
    throw Error(ErrorCode::InvalidArgument, concat("this rank is not in ", core::set_text(set.id()),
                                                   ", or the set has been removed"));
  }
  return lines;
}

bool ProcessSets::refuse_calls() noexcept {
  closed_ = true;
  return making_;
}

bool ProcessSets::close() {
  using namespace std::chrono_literals;
  closed_ = true;
  const auto deadline = std::chrono::steady_clock::now() + 5s;
  while (!calls_mutex_.try_lock()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(1ms);
  }
  const std::lock_guard lock(calls_mutex_, std::adopt_lock);
  const std::lock_guard sets_lock(sets_mutex_);  // no thread is in leave()
  prepared_ = {};
  return true;
}

}  // namespace horon::ops
