// How control messages travel between ranks: five small duties (PROTOCOL.md, section 11).
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/shared_bytes.h"
#include "horon/core/host/doorbell.h"

namespace horon::core {

using Bytes = std::vector<std::byte>;

// Unless a call is said to be for any thread, it is made by one thread at a time: the holder of the
// seat (runtime/loop_seat.h), and in the end the thread that shuts down. Messages between two ranks
// arrive once and in order. Failures of the network below throw horon::Error.
class Transport {
 public:
  struct Message {
    int from = 0;
    Bytes bytes;
  };

  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // send() of a longer message throws Error(Limit). A receiver that reads a greater length throws.
  static constexpr size_t kMessageBytesMax = size_t{256} << 20;

  // Queues a message and returns; never blocks for the receiver. to != rank(). Several sends may
  // share one payload: it is kept, not copied, and nobody writes to it.
  virtual void send(int to, SharedBytes message) = 0;

  // The next message, if one is here. Also moves queued sends along.
  virtual std::optional<Message> receive() = 0;

  // All queued sends are on their way: they no longer depend on calls of receive().
  virtual bool flushed() = 0;

  // True if some peer can't ring this rank's doorbell, so that waits must be short. Any thread.
  virtual bool must_poll() const = 0;

  // Looks as long as the policy says, then sleeps. Ends at a ring() since the last wait(), a
  // message from a peer that can ring, or the timeout. May return early.
  virtual void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) = 0;

  // Submissions ring it, and so do the peers that can. wait() sleeps on it. Any thread.
  virtual Doorbell& doorbell() noexcept = 0;
  // How long a wait should look before it sleeps on a host like this rank's. Any thread.
  virtual WaitPolicy wait_policy() const noexcept = 0;
  // Wakes wait(). Any thread.
  void ring() noexcept { doorbell().ring(); }

  struct DeadPeer {
    int rank = 0;
    std::string text;  // "rank 3 (pid 4711 on host h)"
  };
  // The peers whose processes are known to have ended, where the platform can tell; cheap.
  virtual std::vector<DeadPeer> dead_peers() { return {}; }

  // The job has failed: peers may go on sending for some time, and nobody will receive that. Called
  // before the end of the transport.
  virtual void abandon() noexcept {}

 protected:
  // Called first by every send(). Throws Error(Limit).
  static void require_sendable(const SharedBytes& message);
};

}  // namespace horon::core
