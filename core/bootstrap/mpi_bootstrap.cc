#include "horon/core/bootstrap/mpi_bootstrap.h"

#include <algorithm>
#include <numeric>

#include <climits>

#include "horon/core/base/text.h"
#include "horon/core/bootstrap/mpi_error.h"

namespace horon::core {
namespace {

MPI_Comm with_returned_errors(MPI_Comm communicator) {
  check_mpi(MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return communicator;
}

std::vector<std::string> allgather_over(MPI_Comm communicator, std::string_view mine) {
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
                       " to tell each other at the start of the job; ", bytes_text(INT_MAX),
                       " is the most"));
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

}  // namespace

MpiBootstrap::MpiBootstrap(const MpiLibrary& library, const void* communicator,
                           const std::string& host_id)
    : library_(library) {
  const MPI_Comm parent =
      communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(communicator);
  check_mpi(MPI_Comm_dup(parent, &communicator_), "MPI_Comm_dup");
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

}  // namespace horon::core
