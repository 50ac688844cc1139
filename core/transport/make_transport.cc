#include "horon/core/transport/make_transport.h"

#include <utility>

#include "horon/core/transport/mpi_transport.h"
#include "horon/core/transport/routed_transport.h"
#include "horon/core/transport/shared_memory_transport.h"

namespace horon::core {

std::unique_ptr<Transport> make_transport(const MpiBootstrap& bootstrap, LocalGroup& group,
                                          std::byte* area, const WaitPolicy& policy) {
  const Topology& topology = bootstrap.topology();
  std::unique_ptr<SharedMemoryTransport> local;
  if (group.available()) {
    local = std::make_unique<SharedMemoryTransport>(group, area, topology, policy);
  }
  // All hosts must choose alike whether to make MPI's communicator: one_host() is the same on all
  // ranks, and on one host so is available().
  if (local != nullptr && topology.one_host()) return local;
  auto remote = std::make_unique<MpiTransport>(bootstrap, policy);
  if (local == nullptr) return remote;
  return std::make_unique<RoutedTransport>(std::move(local), std::move(remote));
}

}  // namespace horon::core
