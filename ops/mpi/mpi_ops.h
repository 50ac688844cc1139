// All collectives on MPI, for code that must not include mpi.h.
#pragma once

#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// `communicator` points to an MPI_Comm, which is read at once. The communicator must outlive the
// ops; only the other functions here may use it too. `scratch` is for what the ops convert and
// stage.
std::vector<std::unique_ptr<core::CollectiveOp>> make_mpi_ops(
    const void* communicator, std::shared_ptr<core::ScratchPool> scratch);

// For the two ranks of a pair, on the communicator of all ranks, which others may use too. `me` and
// `peer`: see MpiPair.
std::vector<std::unique_ptr<core::CollectiveOp>> make_mpi_pair_ops(
    const void* communicator, std::shared_ptr<core::ScratchPool> scratch, int me, int peer);

// Messages on the same communicator.
std::shared_ptr<Messages> make_mpi_messages(const void* communicator);
// For an allreduce beside those that use the first messages (MpiMessages::Tags::Beside).
std::shared_ptr<Messages> make_mpi_messages_beside(const void* communicator);

}  // namespace horon::ops
