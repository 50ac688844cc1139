// Ranks of MPI_COMM_WORLD, all on this host, as a World.
#pragma once

#include <mpi.h>

#include "horon/core/host/local_group.h"
#include "horon/tests/ops/op_contract.h"

namespace horon::ops {

inline core::LocalGroup::Exchange mpi_exchange() {
  return [](std::span<const std::byte> mine) {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    std::vector<std::byte> all(mine.size() * static_cast<size_t>(size));
    const auto bytes = static_cast<int>(mine.size());
    MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD);
    return all;
  };
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
