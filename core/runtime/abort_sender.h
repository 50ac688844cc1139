// Tells the other ranks that the job is over, also where this rank has no memory for the text.
#pragma once

#include <optional>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/bootstrap/topology.h"
#include "horon/core/negotiation/protocol.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

// Belongs to the thread that steps the transport. Best effort: a peer that can't be reached does
// not keep the others from hearing of the error.
class AbortSender {
 public:
  // Prepares a short message for all peers while there is memory. `out_of_memory` is its text. The
  // transport outlives the sender.
  AbortSender(const Topology& topology, const Error& out_of_memory, Transport& transport);

  // Sends an Abort with this error to every peer. Only the first call counts.
  void send(const Error& error) noexcept;
  // Tries again where there was no memory even to queue the prepared message. True once no peer is
  // left to be told.
  bool done() noexcept;

 private:
  struct Peer {
    int rank = 0;
    bool settled = false;  // the message is on its way, or this peer can't be reached
  };
  static SharedBytes message(const Error& error);
  bool settle(Peer& peer, const SharedBytes& full) noexcept;

  Transport& transport_;
  const SharedBytes prepared_;
  std::vector<Peer> peers_;
  std::optional<Error> error_;
};

}  // namespace horon::core
