// Owner of a duplicated communicator: the collectives of one process set have it to themselves.
#pragma once

#include <cstdint>
#include <vector>

#include <mpi.h>

#include "horon/core/bootstrap/mpi_bootstrap.h"

namespace horon::ops {

class MpiCommunicator {
 public:
  // Collective over all ranks of the job; the bootstrap must outlive it.
  explicit MpiCommunicator(const core::MpiBootstrap& bootstrap);
  // For some ranks of the job, ascending; collective over these alone. `id` tells this call from
  // other calls of the same ranks: one that has failed may still have messages on the way.
  MpiCommunicator(const core::MpiBootstrap& bootstrap, const std::vector<int>& ranks, uint32_t id);
  // Collective, unless MPI was abandoned: then the communicator is never freed.
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  // An MPI_Comm*, for code that must not include mpi.h.
  const void* handle() const { return &communicator_; }

 private:
  const core::MpiLibrary& library_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

}  // namespace horon::ops
