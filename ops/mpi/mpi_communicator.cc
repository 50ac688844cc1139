#include "horon/ops/mpi/mpi_communicator.h"

#include "horon/core/bootstrap/mpi_error.h"

namespace horon::ops {

MpiCommunicator::MpiCommunicator(const core::MpiSession& session) : session_(session) {
  core::check_mpi(MPI_Comm_dup(session.communicator(), &communicator_), "MPI_Comm_dup");
}

MpiCommunicator::MpiCommunicator(const core::MpiSession& session, const std::vector<int>& ranks)
    : session_(session) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  core::check_mpi(MPI_Comm_group(session.communicator(), &all), "MPI_Comm_group");
  core::check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some),
                  "MPI_Group_incl");
  core::check_mpi(MPI_Comm_create_group(session.communicator(), some, 0, &communicator_),
                  "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
}

MpiCommunicator::~MpiCommunicator() {
  if (!session_.abandoned()) MPI_Comm_free(&communicator_);
}

}  // namespace horon::ops
