// Ranks of MPI_COMM_WORLD, all on this host, as a World.
#pragma once

#include <memory>

#include <mpi.h>

#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/core/host/local_group.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {

inline std::unique_ptr<core::LocalGroup> mpi_local_group(
    size_t area_bytes,
    core::LocalGroup::ProcessCopies copies = core::LocalGroup::ProcessCopies::IfAllowed) {
  core::MpiLibrary library;
  return core::LocalGroup::create(core::MpiBootstrap(library), area_bytes, copies);
}

inline World mpi_world() {
  World world;
  MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world.size);
  world.gather = [size = world.size](uint64_t mine) {
    std::vector<uint64_t> all(static_cast<size_t>(size));
    MPI_Allgather(&mine, 1, MPI_UINT64_T, all.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD);
    return all;
  };
  return world;
}

}  // namespace horon::ops
