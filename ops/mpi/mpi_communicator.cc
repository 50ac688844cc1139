#include "horon/ops/mpi/mpi_communicator.h"

#include "horon/core/transport/mpi_error.h"

namespace horon::ops {

MpiCommunicator::MpiCommunicator(const core::MpiSession& session) : session_(session) {
  core::check_mpi(MPI_Comm_dup(session.communicator(), &communicator_), "MPI_Comm_dup");
}

MpiCommunicator::~MpiCommunicator() {
  if (!session_.abandoned()) MPI_Comm_free(&communicator_);
}

}  // namespace horon::ops
