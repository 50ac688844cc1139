#include "horon/core/bootstrap/mpi_bootstrap.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include <climits>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/base/wait_check.h"
#include "horon/core/bootstrap/mpi_error.h"

namespace horon::core {
namespace {

using Clock = std::chrono::steady_clock;

// The communicator that the caller has given. Asks this rank alone.
MPI_Comm parent_of(const void* communicator) {
  if (communicator == nullptr) return MPI_COMM_WORLD;
  const MPI_Comm parent = *static_cast<const MPI_Comm*>(communicator);
  if (parent == MPI_COMM_NULL) {
    throw Error(
        ErrorCode::InvalidArgument,
        "InitOptions::mpi_comm is MPI_COMM_NULL, which MPI_Comm_split() returns on a rank that "
        "gave MPI_UNDEFINED: such a rank is in no communicator and must not call horon::init()");
  }
  int is_between_groups = 0;
  check_mpi(MPI_Comm_test_inter(parent, &is_between_groups), "MPI_Comm_test_inter");
  if (is_between_groups != 0) {
    throw Error(ErrorCode::InvalidArgument,
                "InitOptions::mpi_comm is an intercommunicator: horon::init() needs an "
                "intracommunicator; MPI_Intercomm_merge() makes one of its two groups");
  }
  return parent;
}

// It can't name the missing ranks, which are not known yet.
std::string missing_ranks_text(MPI_Comm parent, double waited_s) {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(parent, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(parent, &size), "MPI_Comm_size");
  return concat("horon::init() on rank ", rank, " has waited ", std::lround(waited_s),
                " s for other ranks of the communicator: all of its ", size,
                " ranks must call init(); if only some of them train, give InitOptions::mpi_comm a "
                "communicator of those");
}

// Whether a rank that waits for others has to say so or to give up.
class Patience {
 public:
  explicit Patience(const WaitLimits& limits)
      : abort_s_(limits.abort_s), gap_s_(limits.warn_s), next_s_(limits.warn_s) {}

  // Warns with `text(waited_s)`, or throws it as an Error(Stall).
  template <class Text>
  void watch(double waited_s, const Text& text) {
    if (abort_s_ > 0 && waited_s >= abort_s_) {
      throw Error(ErrorCode::Stall,
                  concat(text(waited_s), " (HORON_STALL_ABORT_S ended the wait)"));
    }
    if (warning_is_due(waited_s)) log(LogLevel::Warn, text(waited_s));
  }

 private:
  bool warning_is_due(double waited_s) {
    constexpr double kGapMax_s = 600;
    if (gap_s_ <= 0 || waited_s < next_s_) return false;
    gap_s_ = std::min(2 * gap_s_, kGapMax_s);
    next_s_ = waited_s + gap_s_;
    return true;
  }

  const double abort_s_;
  double gap_s_;
  double next_s_;
};

// Waits for a non-blocking call. So this rank can report that it waits, by watch(seconds so far).
// If that or the program's check throws, the call stays behind in MPI, which has no way to end one.
template <class Watch>
void wait_for(MPI_Request& request, const Watch& watch) {
  constexpr double kYields_s = 0.02;  // most waits are shorter, and a nap is long beside them
  constexpr auto kNap = std::chrono::milliseconds(1);
  const auto begin = Clock::now();
  auto last_check = begin;
  for (;;) {
    int is_over = 0;
    check_mpi(MPI_Test(&request, &is_over, MPI_STATUS_IGNORE), "MPI_Test");
    if (is_over != 0) return;
    const double waited_s = std::chrono::duration<double>(Clock::now() - begin).count();
    watch(waited_s);
    const WaitCheck check = wait_check();
    if (check != nullptr && Clock::now() - last_check >= kWaitCheckInterval) {
      check();
      last_check = Clock::now();
    }
    if (waited_s < kYields_s) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

// Returns when all ranks of the communicator are here. `text(seconds so far)` tells of the wait. If
// this rank gives up, it abandons the library.
template <class Text>
void meet(MpiLibrary& library, MPI_Comm communicator, const WaitLimits& limits, const Text& text) {
  try {
    // If a rank has given up waiting, its call meets that of a rank that comes later; so the latter
    // waits in its second call.
    for (int call = 0; call < 2; ++call) {
      MPI_Request request = MPI_REQUEST_NULL;
      check_mpi(MPI_Ibarrier(communicator, &request), "MPI_Ibarrier");
      Patience patience(limits);
      wait_for(request, [&](double waited_s) { patience.watch(waited_s, text); });
    }
  } catch (...) {
    library.abandon();
    throw;
  }
}

MPI_Comm with_returned_errors(MPI_Comm communicator) {
  check_mpi(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return communicator;
}

}  // namespace

// By a barrier, since MPI's non-blocking allgathers may connect every two ranks. It is not known
// which rank is late; but all others warn or give up, so it is the one that does not.
void MpiBootstrap::wait_for_others(MPI_Comm communicator) const {
  int rank = 0;
  check_mpi(MPI_Comm_rank(communicator_, &rank), "MPI_Comm_rank");
  meet(library_, communicator, limits_, [rank](double waited_s) {
    return concat("horon::init() on rank ", rank, " has waited ", std::lround(waited_s),
                  " s for a rank that has called init() too and is stuck in it: one that does not "
                  "tell of such a wait. Look at its host, its files and its devices");
  });
}

std::vector<std::string> MpiBootstrap::allgather_over(MPI_Comm communicator,
                                                      std::string_view mine) const {
  if (library_.abandoned()) {  // the others can't meet this rank any more
    throw Error(ErrorCode::Stall, "this rank has given up waiting for others in horon::init()");
  }
  wait_for_others(communicator);
  int size = 0;
  check_mpi(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  const auto count = static_cast<size_t>(size);
  const auto length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths(count);
  check_mpi(MPI_Allgather(&length, 1, MPI_INT64_T, lengths.data(), 1, MPI_INT64_T, communicator),
            "MPI_Allgather");
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  if (total > INT_MAX) {
    throw Error(ErrorCode::Limit,
                concat("the ranks have ", bytes_text(static_cast<uint64_t>(total)),
                       " to exchange at the start of the job; the limit is ", bytes_text(INT_MAX)));
  }
  const std::vector<int> counts(lengths.begin(), lengths.end());
  std::vector<int> begins(count);
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
  std::string all(static_cast<size_t>(total), '\0');
  check_mpi(MPI_Allgatherv(mine.data(), static_cast<int>(length), MPI_BYTE, all.data(),
                           counts.data(), begins.data(), MPI_BYTE, communicator),
            "MPI_Allgatherv");
  std::vector<std::string> blocks;
  for (size_t i = 0; i < count; ++i) {
    blocks.push_back(all.substr(static_cast<size_t>(begins[i]), static_cast<size_t>(counts[i])));
  }
  return blocks;
}

MpiBootstrap::MpiBootstrap(MpiLibrary& library, const void* communicator,
                           const std::string& host_id, WaitLimits limits)
    : library_(library), limits_(limits) {
  check_mpi(MPI_Comm_dup(parent_of(communicator), &communicator_), "MPI_Comm_dup");
  with_returned_errors(communicator_);
  find_hosts(host_id);
}

// A host is named by its lowest rank.
void MpiBootstrap::find_hosts(const std::string& host_id) {
  int rank = 0;
  check_mpi(MPI_Comm_rank(communicator_, &rank), "MPI_Comm_rank");
  MPI_Comm sharing = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(communicator_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &sharing),
            "MPI_Comm_split_type");
  const std::vector<std::string> ids = allgather_over(with_returned_errors(sharing), host_id);
  const auto first_alike = std::find(ids.begin(), ids.end(), host_id);
  const int color = static_cast<int>(first_alike - ids.begin());
  check_mpi(MPI_Comm_split(sharing, color, rank, &host_communicator_), "MPI_Comm_split");
  with_returned_errors(host_communicator_);
  check_mpi(MPI_Comm_free(&sharing), "MPI_Comm_free");

  int lowest_rank = rank;
  check_mpi(MPI_Bcast(&lowest_rank, 1, MPI_INT, 0, host_communicator_), "MPI_Bcast");
  int size = 0;
  check_mpi(MPI_Comm_size(communicator_, &size), "MPI_Comm_size");
  std::vector<int> lowest_ranks(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&lowest_rank, 1, MPI_INT, lowest_ranks.data(), 1, MPI_INT, communicator_),
            "MPI_Allgather");
  topology_ = make_topology(rank, lowest_ranks);
}

MpiBootstrap::~MpiBootstrap() {
  if (!library_.usable()) return;
  if (host_communicator_ != MPI_COMM_NULL) MPI_Comm_free(&host_communicator_);
  if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
}

std::vector<std::string> MpiBootstrap::allgather(Among among, std::string_view mine) const {
  return allgather_over(among == Among::Job ? communicator_ : host_communicator_, mine);
}

std::unique_ptr<MpiBootstrap> meet_all_ranks(MpiLibrary& library, const void* communicator,
                                             const Config& config) {
  const MPI_Comm parent = parent_of(communicator);
  const WaitLimits limits{.warn_s = config.stall_warn_s, .abort_s = config.stall_abort_s};
  meet(library, parent, limits,
       [parent](double waited_s) { return missing_ranks_text(parent, waited_s); });
  return std::make_unique<MpiBootstrap>(library, communicator, config.host_id, limits);
}

}  // namespace horon::core
