#include "horon/core/runtime/abort_sender.h"

#include <new>

#include "horon/core/negotiation/wire_format.h"
#include "horon/core/runtime/submission.h"

namespace horon::core {

AbortSender::AbortSender(const Topology& topology, const Error& out_of_memory, Transport& transport)
    : transport_(transport), prepared_(message(out_of_memory)) {
  for (int rank = 0; rank < topology.size; ++rank) {
    if (rank != topology.rank) peers_.push_back({rank, false});
  }
}

// Addressed to the set of all ranks, which takes an Abort even after its Bye.
SharedBytes AbortSender::message(const Error& error) {
  Envelope envelope;
  envelope.set = kWorldSet;
  envelope.items.emplace_back(Abort{error.code(), error.what()});
  return encode(envelope);
}

void AbortSender::send(const Error& error) noexcept {
  if (error_) return;
  error_ = error;
  (void)done();
}

bool AbortSender::done() noexcept {
  if (!error_) return true;
  SharedBytes full;
  try {
    full = message(*error_);
  } catch (...) {  // no memory: the prepared message must do
  }
  bool all = true;
  for (Peer& peer : peers_) all = settle(peer, full) && all;
  return all;
}

bool AbortSender::settle(Peer& peer, const SharedBytes& full) noexcept {
  const auto try_to_send = [&](const SharedBytes& bytes) {
    if (peer.settled || bytes.empty()) return;
    try {
      transport_.send(peer.rank, bytes);
      peer.settled = true;
    } catch (const std::bad_alloc&) {  // another try may find memory
    } catch (...) {
      peer.settled = true;
    }
  };
  try_to_send(full);
  try_to_send(prepared_);
  return peer.settled;
}

}  // namespace horon::core
