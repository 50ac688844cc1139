// Control messages between the ranks of one host: a byte ring for each ordered pair, and doorbells.
//
// A message that is larger than the ring streams through it. What does not fit waits in this rank's
// queue, and the reader rings the writer when there is room again: nobody ever polls.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/bootstrap/topology.h"
#include "horon/core/host/local_group.h"
#include "horon/core/transport/byte_ring.h"
#include "horon/core/transport/transport.h"

namespace horon::core {

// Ranks are the job's, but only those of this host can be reached. The group must outlive the
// transport.
class SharedMemoryTransport final : public Transport {
 public:
  // Bytes of the group's area that it needs, from a 64-byte aligned start.
  static size_t area_bytes(int local_size);

  // `area`: area_bytes() zeroed bytes at the same place of the group's area on every rank, used by
  // this transport alone from now on. The group is available().
  SharedMemoryTransport(LocalGroup& group, std::byte* area, const Topology& topology,
                        const WaitPolicy& policy);

  int rank() const override { return topology_.rank; }
  int size() const override { return topology_.size; }
  bool reaches(int rank) const;
  void send(int to, SharedBytes message) override;
  std::optional<Message> receive() override;
  bool flushed() override;
  bool must_poll() const override { return false; }
  void wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) override;
  Doorbell& doorbell() noexcept override { return group_.doorbell(topology_.local_rank); }
  WaitPolicy wait_policy() const noexcept override { return policy_; }
  // "rank 3 (pid 4711 on host node7)"
  std::vector<DeadPeer> dead_peers() override;

 private:
  using LengthPrefix = std::array<std::byte, sizeof(uint64_t)>;
  struct Outgoing {
    LengthPrefix length{};
    SharedBytes bytes;
    size_t done = 0;  // of length and bytes together
  };
  struct Incoming {
    LengthPrefix length{};
    Bytes bytes;
    size_t done = 0;
  };
  struct Peer {
    int rank = 0;
    ByteRing out;
    ByteRing in;
    std::deque<Outgoing> queue;
    Incoming incoming;
  };

  bool push(Peer& peer, Outgoing& message);
  void push_queue(Peer& peer, size_t local_rank);
  void push_queues();
  std::optional<Bytes> pull(Peer& peer);
  bool take(Peer& peer, std::span<std::byte> bytes, size_t begin);

  LocalGroup& group_;
  const Topology topology_;
  const WaitPolicy policy_;
  std::vector<int> local_rank_of_;  // [rank], -1 on another host
  std::vector<Peer> peers_;         // [local rank]; the own entry is not used
  size_t queued_ = 0;               // messages in all queues
  size_t next_ = 0;  // where receive() looks first, so that all peers have their turn
};

}  // namespace horon::core
