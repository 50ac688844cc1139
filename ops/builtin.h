// The collectives of this build, in order of preference. The only place that knows them all.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/bootstrap/topology.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_domain.h"
#include "horon/core/host/local_group.h"

namespace horon::ops {

// What there is to work with. The group and the communicator must outlive the ops.
struct BuiltinParts {
  const core::Topology* topology = nullptr;
  const core::Config* config = nullptr;
  // The ranks of this host; may be null or not available.
  core::LocalGroup* local_group = nullptr;
  // builtin_area_bytes() of zeroed memory that the group shares, 64-byte aligned, for the ops
  // alone. Null if there is no group that is available.
  std::byte* area = nullptr;
  // An MPI_Comm* of the caller's over all ranks, used for nothing else. Null: no ops on MPI.
  const void* mpi_communicator = nullptr;
};

size_t builtin_area_bytes(int local_size);

// Every rank makes the same list: what decides is the same on all of them.
std::vector<std::unique_ptr<core::CollectiveOp>> make_builtin_ops(const BuiltinParts& parts);

// One domain for each kind of memory. `local_group` may be null.
std::vector<std::unique_ptr<core::MemoryDomain>> make_builtin_domains(
    core::LocalGroup* local_group);

}  // namespace horon::ops
