#include "horon/ops/mpi/mpi_channel.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/mpi_error.h"

namespace horon::ops {

MpiChannel::MpiChannel(MPI_Comm communicator, std::shared_ptr<core::ScratchPool> scratch,
                       int64_t piece_elements_max)
    : communicator_(communicator),
      scratch_(std::move(scratch)),
      piece_elements_max_(piece_elements_max) {
  HORON_CHECK(piece_elements_max > 0 && piece_elements_max <= (int64_t{1} << 30),
              "a piece must fit an int");
  core::check_mpi(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN),
                  "MPI_Comm_set_errhandler");
  core::check_mpi(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
  core::check_mpi(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
}

}  // namespace horon::ops
