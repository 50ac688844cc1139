#include "horon/ops/communicator/communicator_maker.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/log.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/host/local_subgroup.h"
#include "horon/ops/communicator/mpi_communicator_call.h"

namespace horon::ops {
namespace {

using core::concat;
using Clock = std::chrono::steady_clock;

// How often ranks that wait for MPI report to each other, so that the runtime sees who does not
// answer.
constexpr auto kReportInterval = std::chrono::seconds(1);

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Fills in what the members have on their hosts. Collective over the ranks that talk; one that is
// no member has no group.
void compare_memory(const core::Bootstrap& talk, Communicator::Parts& parts) {
  struct Memory {
    bool shares;
    bool reaches_its_host;
  };
  const bool shares = parts.local_group != nullptr && parts.local_group->available();
  const auto all = core::allgather_values(talk, core::Bootstrap::Among::Job,
                                          Memory{shares, shares || parts.topology.local_size == 1});
  const auto have_all = [&](bool Memory::*which) {
    return std::all_of(parts.members.begin(), parts.members.end(),
                       [&](int rank) { return all[static_cast<size_t>(rank)].*which; });
  };
  parts.all_share_memory = have_all(&Memory::shares);
  parts.all_reach_their_hosts = have_all(&Memory::reaches_its_host);
}

// How far a rank has come: a letter, and the text of a failure or the seconds that it has waited.
constexpr char kReady = 'r';
constexpr char kWaiting = 'w';
constexpr char kFailed = 'f';

// Waits until the next report is due, as the program waits for a collective. An exception of the
// wait check ends the wait, and abandons MPI together with its call.
bool returned_in_time(MpiCommunicatorCall& call) {
  const auto due = Clock::now() + kReportInterval;
  while (!call.wait(core::kWaitCheckInterval)) {
    if (const core::WaitCheck check = core::wait_check()) check();
    if (Clock::now() >= due) return false;
  }
  return true;
}

}  // namespace

// The states of all ranks' MPI calls after one exchange; the same on all ranks.
class CommunicatorMaker::Progress {
 public:
  explicit Progress(const std::vector<std::string>& states) {
    for (size_t i = 0; i < states.size(); ++i) {
      if (states[i].empty()) continue;  // the rank takes no part
      const char letter = states[i].front();
      const auto rank = static_cast<int>(i);
      if (first_rank_ < 0) first_rank_ = rank;
      if (letter == kWaiting) {
        waiting_.push_back(rank);
        waited_s_ = std::max(waited_s_, core::parse_number(states[i].substr(1)).value_or(0));
      }
      if (letter == kFailed && !failure_)
        failure_ = concat(states[i].substr(1), " (on rank ", rank, ")");
    }
  }
  const std::optional<std::string>& failure() const { return failure_; }
  const std::vector<int>& waiting() const { return waiting_; }
  double waited_s() const { return waited_s_; }
  int first_rank() const { return first_rank_; }
  std::string waiting_text() const {
    return concat("MPI_Comm_create_group has not returned on ", core::name_ranks(waiting_), " in ",
                  std::lround(waited_s_), " s");
  }

 private:
  std::vector<int> waiting_;
  double waited_s_ = 0;  // the longest of all ranks
  int first_rank_ = -1;
  std::optional<std::string> failure_;
};

CommunicatorMaker::CommunicatorMaker(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
                                     Options options)
    : library_(library), bootstrap_(bootstrap), options_(std::move(options)) {
  const uint8_t mine = library.allows_threads_at_once() ? 1 : 0;
  const auto all = core::allgather_values(bootstrap, core::Bootstrap::Among::Job, mine);
  threads_at_once_ = std::ranges::find(all, 0) == all.end();
}

std::shared_ptr<Communicator> CommunicatorMaker::make_world(size_t reserved_bytes) const {
  const core::Topology& topology = bootstrap_.topology();
  Communicator::Parts parts;
  parts.topology = topology;
  parts.members = core::all_ranks(topology.size);
  core::run_on_all(bootstrap_, [&] {
    const size_t bytes = reserved_bytes + options_.area_bytes(topology);
    parts.local_group =
        options_.shared_memory
            ? core::LocalGroup::create(bootstrap_, bytes, options_.process_copies)
            : core::LocalGroup::create_unavailable(topology.local_rank, topology.local_size,
                                                   "HORON_SHARED_MEMORY=0");
  });
  if (parts.local_group->available()) parts.area = parts.local_group->area() + reserved_bytes;
  compare_memory(bootstrap_, parts);
  core::run_on_all(bootstrap_, [&] { parts.mpi = std::make_unique<MpiCommunicator>(bootstrap_); });
  return std::make_shared<Communicator>(std::move(parts));
}

std::shared_ptr<Communicator> CommunicatorMaker::make(const Communicator& world,
                                                      const core::Bootstrap& talk,
                                                      const Part& part) const {
  const bool takes_part = !part.members.empty();
  Communicator::Parts parts;
  std::vector<int> local_ranks;  // the members of this host, among its ranks
  if (takes_part) {
    parts.id = part.id;
    parts.members = part.members;
    parts.constants = world.constants();
    parts.topology = core::restrict_to_members(talk.topology(), part.members);
    for (const int index : parts.topology.local_ranks) {
      const auto member = part.members[static_cast<size_t>(index)];
      const auto& on_host = talk.topology().local_ranks;
      const auto found = std::lower_bound(on_host.begin(), on_host.end(), member);
      local_ranks.push_back(static_cast<int>(found - on_host.begin()));
    }
  }
  const size_t bytes = takes_part ? options_.area_bytes(parts.topology) : 0;
  parts.local_group =
      core::make_local_subgroup(world.shared_local_group(), talk, local_ranks, bytes);
  compare_memory(talk, parts);
  // If some rank allows only one thread in MPI, the thread that may call it does so, in connect().
  if (threads_at_once_) parts.mpi = make_mpi(talk, part);
  if (!takes_part) return nullptr;
  if (parts.local_group->available()) {
    parts.area = parts.local_group->area();
  } else if (world.local_group().available()) {
    core::log(core::LogLevel::Warn,
              concat(part.what, ": no shared memory: ", parts.local_group->unavailable_reason()));
  }
  return std::make_shared<Communicator>(std::move(parts));
}

std::unique_ptr<MpiCommunicator> CommunicatorMaker::make_mpi(const core::Bootstrap& talk,
                                                             const Part& part) const {
  std::optional<MpiCommunicatorCall> call;
  std::string fault;
  if (!part.members.empty() && library_.abandoned()) {
    // So on all members. The call that was left in MPI may keep a new one waiting for ever.
    fault = "an earlier call was given up in MPI, so no more process sets can be made";
  } else if (!part.members.empty()) {
    try {
      call.emplace(library_, [this, part] {
        return std::make_unique<MpiCommunicator>(bootstrap_, part.members, part.id);
      });
    } catch (const std::exception& error) {
      fault = error.what();
    }
  }
  const auto begin = Clock::now();
  double warned_s = 0;
  for (;;) {
    std::string state(1, kReady);
    if (call && !returned_in_time(*call)) {
      state = concat(kWaiting, seconds_since(begin));
    } else if (call) {
      fault = call->failure();
    }
    if (!fault.empty()) state = concat(kFailed, fault);
    const Progress progress(talk.allgather(core::Bootstrap::Among::Job, state));
    if (!progress.failure() && progress.waiting().empty()) break;
    // The same on all ranks, since it follows from what they have told each other.
    const bool too_long =
        options_.abort_after_s > 0 && progress.waited_s() >= options_.abort_after_s;
    if (progress.failure() || too_long) {
      // A rank that waits in MPI may do so for ever, so no other rank may wait there for it.
      if (!progress.waiting().empty()) give_mpi_up(talk);
      if (progress.failure()) {
        throw Error(ErrorCode::OperationFailed, concat(part.what, ": ", *progress.failure()));
      }
      throw Error(ErrorCode::Stall, concat(part.what, ": ", progress.waiting_text(),
                                           ", the limit of HORON_STALL_ABORT_S"));
    }
    if (talk.topology().rank == progress.first_rank() && options_.warn_after_s > 0 &&
        progress.waited_s() >= warned_s + options_.warn_after_s) {
      warned_s = progress.waited_s();
      core::log(core::LogLevel::Warn, concat(part.what, ": ", progress.waiting_text()));
    }
  }
  return call ? call->take() : nullptr;
}

// All ranks that talk have the same states, unless the wait check of one has ended its wait for
// them. That rank does not know that the others give MPI up, and would wait for them in
// MPI_Finalize(). So they meet once more.
void CommunicatorMaker::give_mpi_up(const core::Bootstrap& talk) const {
  library_.abandon();
  try {
    (void)talk.allgather(core::Bootstrap::Among::Job, std::string(1, kFailed));
    gave_up_together_ = true;
  } catch (const Error&) {  // why MPI is given up says more, and is thrown next
  }
}

// The call has a thread of its own here too, while this thread waits and makes no call of MPI's.
// MPI_THREAD_SERIALIZED allows that, and this thread can give up.
void CommunicatorMaker::connect(Communicator& communicator, uint32_t id) const {
  if (communicator.mpi() != nullptr) return;
  MpiCommunicatorCall call(library_, [this, members = communicator.members(), id] {
    return std::make_unique<MpiCommunicator>(bootstrap_, members, id);
  });
  const auto begin = Clock::now();
  while (!call.wait(std::chrono::milliseconds(100))) {
    std::vector<int> dead;
    for (const int local_rank : communicator.local_group().dead_local_ranks()) {
      dead.push_back(communicator.members_of_this_host()[static_cast<size_t>(local_rank)]);
    }
    if (!dead.empty()) {
      library_.abandon();
      throw Error(ErrorCode::PeerDead,
                  concat(core::name_ranks(dead), dead.size() == 1 ? " has" : " have",
                         " died in MPI_Comm_create_group"));
    }
    const double waited_s = seconds_since(begin);
    for (const double limit_s : {options_.abort_after_s, options_.dead_after_s}) {
      if (limit_s <= 0 || waited_s < limit_s) continue;
      library_.abandon();
      throw Error(ErrorCode::Stall,
                  concat("MPI_Comm_create_group of ", core::name_ranks(communicator.members()),
                         " has not returned in ", std::lround(waited_s), " s"));
    }
  }
  if (!call.failure().empty()) throw Error(ErrorCode::OperationFailed, call.failure());
  communicator.set_mpi(call.take());
}

}  // namespace horon::ops
