#include "horon/ops/mpi/mpi_communicator.h"

#include "horon/core/bootstrap/mpi_error.h"

namespace horon::ops {

MpiCommunicator::MpiCommunicator(const core::MpiBootstrap& bootstrap)
    : library_(bootstrap.library()) {
  core::check_mpi(MPI_Comm_dup(bootstrap.communicator(), &communicator_), "MPI_Comm_dup");
}

MpiCommunicator::MpiCommunicator(const core::MpiBootstrap& bootstrap, const std::vector<int>& ranks,
                                 uint32_t id)
    : library_(bootstrap.library()) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  core::check_mpi(MPI_Comm_group(bootstrap.communicator(), &all), "MPI_Comm_group");
  core::check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some),
                  "MPI_Group_incl");
  constexpr uint32_t kTagsMin = 32768;  // how many tags every MPI has
  const int tag = static_cast<int>(id % kTagsMin);
  const int code = MPI_Comm_create_group(bootstrap.communicator(), some, tag, &communicator_);
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  core::check_mpi(code, "MPI_Comm_create_group");
}

MpiCommunicator::~MpiCommunicator() {
  if (library_.usable()) MPI_Comm_free(&communicator_);
}

}  // namespace horon::ops
