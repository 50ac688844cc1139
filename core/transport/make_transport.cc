#include "horon/core/transport/make_transport.h"

#include <utility>

#include "horon/core/transport/mpi_transport.h"
#include "horon/core/transport/routed_transport.h"
#include "horon/core/transport/shared_memory_transport.h"

namespace horon::core {

std::unique_ptr<Transport> make_transport(const MpiBootstrap& bootstrap, LocalGroup& group,
                                          std::byte* area, const WaitPolicy& policy) {
  const Topology& topology = bootstrap.topology();
  // All hosts must agree whether to make MPI's communicator: one_host() is the same on all ranks,
  // and on one host available() is too. The communicator is made first, since that is collective: a
  // rank that fails in a step of its own must not leave the others waiting there.
  std::unique_ptr<MpiTransport> remote;
  if (!group.available() || !topology.one_host()) {
    remote = std::make_unique<MpiTransport>(bootstrap, policy);
  }
  if (!group.available()) return remote;
  auto local = std::make_unique<SharedMemoryTransport>(group, area, topology, policy);
  if (remote == nullptr) return local;
  return std::make_unique<RoutedTransport>(std::move(local), std::move(remote));
}

}  // namespace horon::core
