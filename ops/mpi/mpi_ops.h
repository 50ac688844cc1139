// All collectives on MPI, for code that must not include mpi.h.
#pragma once

#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// `communicator`: an MPI_Comm* of the caller's, which is used for nothing else and outlives the
// ops. It is read at once.
std::vector<std::unique_ptr<core::CollectiveOp>> make_mpi_ops(const void* communicator);

}  // namespace horon::ops
