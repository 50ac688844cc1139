#include "horon/ops/mpi/mpi_channel.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"

namespace horon::ops {

MpiChannel::MpiChannel(MPI_Comm communicator, int64_t piece_elements_max)
    : communicator_(communicator), piece_elements_max_(piece_elements_max) {
  HORON_CHECK(piece_elements_max > 0 && piece_elements_max <= (int64_t{1} << 30),
              "a piece must fit an int");
  core::check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN),
                  "MPI_Comm_set_errhandler");
  core::check_mpi(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  core::check_mpi(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
}

MpiChannel::Buffer MpiChannel::take_buffer(size_t bytes) {
  const auto fits = std::find_if(buffers_.begin(), buffers_.end(),
                                 [&](const Buffer& buffer) { return buffer.bytes >= bytes; });
  if (fits == buffers_.end()) return {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  Buffer buffer = std::move(*fits);
  buffers_.erase(fits);
  return buffer;
}

void MpiChannel::give_back(Buffer buffer) {
  constexpr size_t kKept = 4;
  buffers_.push_back(std::move(buffer));
  if (buffers_.size() > kKept) buffers_.erase(buffers_.begin());
}

}  // namespace horon::ops
