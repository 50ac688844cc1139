// Which transport a job gets: shared memory on one host, MPI where that is not possible, both over
// several hosts.
#pragma once

#include <memory>

#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/core/host/local_group.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

// Collective over all ranks. `area`: SharedMemoryTransport::area_bytes(local_size) bytes of the
// group's area (ignored if the group is not available). Bootstrap and group must outlive the
// transport.
std::unique_ptr<Transport> make_transport(const MpiBootstrap& bootstrap, LocalGroup& group,
                                          std::byte* area, const WaitPolicy& policy);

}  // namespace horon::core
