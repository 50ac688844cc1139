// Owner of a duplicated communicator: the collectives of one process set have it to themselves.
#pragma once

#include <vector>

#include <mpi.h>

#include "horon/core/bootstrap/mpi_session.h"

namespace horon::ops {

class MpiCommunicator {
 public:
  // Collective over the session's communicator; the session must outlive it.
  explicit MpiCommunicator(const core::MpiSession& session);
  // Of some ranks of the session, ascending; collective over these alone.
  MpiCommunicator(const core::MpiSession& session, const std::vector<int>& ranks);
  // Collective, unless the session was abandoned: then the communicator is left to the process.
  ~MpiCommunicator();
  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  // An MPI_Comm*, for code that must not include mpi.h.
  const void* handle() const { return &communicator_; }

 private:
  const core::MpiSession& session_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

}  // namespace horon::ops
