#include "horon/ops/mpi/mpi_ops.h"

#include <utility>

#include "horon/ops/mpi/mpi_allgather.h"
#include "horon/ops/mpi/mpi_allreduce.h"
#include "horon/ops/mpi/mpi_broadcast.h"
#include "horon/ops/mpi/mpi_channel.h"
#include "horon/ops/mpi/mpi_exchange.h"
#include "horon/ops/mpi/mpi_messages.h"
#include "horon/ops/mpi/mpi_pair.h"
#include "horon/ops/mpi/mpi_reducescatter.h"

namespace horon::ops {

std::vector<std::unique_ptr<core::CollectiveOp>> make_mpi_ops(
    const void* communicator, std::shared_ptr<core::ScratchPool> scratch) {
  const auto channel =
      std::make_shared<MpiChannel>(*static_cast<const MPI_Comm*>(communicator), std::move(scratch));
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  ops.push_back(std::make_unique<MpiAllreduce>(channel));
  ops.push_back(std::make_unique<MpiBroadcast>(channel));
  ops.push_back(std::make_unique<MpiAllgather>(channel));
  ops.push_back(std::make_unique<MpiReducescatter>(channel));
  for (const CollectiveKind kind :
       {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    ops.push_back(std::make_unique<MpiExchange>(channel, kind));
  }
  return ops;
}

std::vector<std::unique_ptr<core::CollectiveOp>> make_mpi_pair_ops(
    const void* communicator, std::shared_ptr<core::ScratchPool> scratch, int me, int peer) {
  const auto channel =
      std::make_shared<MpiChannel>(*static_cast<const MPI_Comm*>(communicator), std::move(scratch));
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  ops.push_back(std::make_unique<MpiPair>(channel, me, peer));
  return ops;
}

std::shared_ptr<Messages> make_mpi_messages(const void* communicator) {
  return std::make_shared<MpiMessages>(*static_cast<const MPI_Comm*>(communicator));
}

std::shared_ptr<Messages> make_mpi_messages_beside(const void* communicator) {
  return std::make_shared<MpiMessages>(*static_cast<const MPI_Comm*>(communicator),
                                       MpiMessages::Tags::Beside);
}

}  // namespace horon::ops
