// What a job says about the memory that the ranks of each of its hosts share.
#pragma once

#include <string>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/ops/communicator/communicator.h"

namespace horon::ops {

// "shared memory and MPI", or why there is no shared memory. `world`: of all ranks.
std::string memory_text(const Communicator& world);

// Collective over all ranks: rank 0 warns of hosts that have several ranks and no shared memory.
// `host`: the name of this one.
void warn_of_missing_memory(const core::Bootstrap& bootstrap, const std::string& host,
                            const Communicator& world);

}  // namespace horon::ops
