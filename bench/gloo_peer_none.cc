#include "horon/bench/gloo_peer.h"

namespace horon::bench {

std::unique_ptr<Peer> make_gloo_peer(MpiPeer& /*mpi*/, int /*rank*/, CollectiveKind /*kind*/,
                                     const std::string& /*interface*/, std::string& unavailable) {
  unavailable = "this program was built without it (Debian: libgloo-dev)";
  return nullptr;
}

}  // namespace horon::bench
