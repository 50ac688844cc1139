// Gloo's collectives over TCP, as PyTorch's backend of that name uses them. One of two files is
// built: gloo_peer.cc where CMake finds Gloo (Debian: libgloo-dev), else gloo_peer_none.cc.
#pragma once

#include <memory>
#include <string>

#include "horon/bench/mpi_peer.h"
#include "horon/bench/peer.h"

namespace horon::bench {

// Collective over the members of `mpi`, which tells them each other's addresses. `interface`: the
// network interface ("lo", "eth0"), or empty: see find_gloo_place(). Null, with the reason in
// `unavailable`, if Gloo can't run this kind among these members, or if this program was built
// without Gloo. Throws what Gloo throws.
std::unique_ptr<Peer> make_gloo_peer(MpiPeer& mpi, int rank, CollectiveKind kind,
                                     const std::string& interface, std::string& unavailable);

}  // namespace horon::bench
