#include "horon/core/transport/shared_memory_transport.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {

namespace {

constexpr size_t kRingBytesMax = size_t{16} << 10;
constexpr size_t kRingBytesMin = size_t{1} << 10;
constexpr size_t kAllRingsBytes = size_t{64} << 20;

// The number of pairs grows with the square of the ranks, so on hosts with very many ranks the
// rings get shorter.
size_t ring_capacity(int local_size) {
  const auto pairs = static_cast<size_t>(local_size) * static_cast<size_t>(local_size);
  return std::clamp(std::bit_floor(kAllRingsBytes / pairs), kRingBytesMin, kRingBytesMax);
}

}  // namespace

size_t SharedMemoryTransport::area_bytes(int local_size) {
  const auto count = static_cast<size_t>(local_size);
  return count * count * ByteRing::bytes_needed(ring_capacity(local_size));
}

SharedMemoryTransport::SharedMemoryTransport(LocalGroup& group, std::byte* area,
                                             const Topology& topology, const WaitPolicy& policy)
    : group_(group),
      topology_(topology),
      policy_(policy),
      local_rank_of_(static_cast<size_t>(topology.size), -1) {
  HORON_CHECK(group.available() && area != nullptr, "the group shares memory");
  HORON_CHECK(group.local_size() == topology.local_size &&
                  topology.local_ranks.size() == static_cast<size_t>(topology.local_size),
              "group and topology agree");
  const auto count = static_cast<size_t>(topology.local_size);
  const auto me = static_cast<size_t>(topology.local_rank);
  const size_t capacity = ring_capacity(topology.local_size);
  const auto ring = [&](size_t from, size_t to) {
    return ByteRing(area + (from * count + to) * ByteRing::bytes_needed(capacity), capacity);
  };
  for (size_t i = 0; i < count; ++i) {
    local_rank_of_.at(static_cast<size_t>(topology.local_ranks[i])) = static_cast<int>(i);
    peers_.push_back({topology.local_ranks[i], ring(me, i), ring(i, me), {}, {}});
  }
}

bool SharedMemoryTransport::reaches(int rank) const {
  return rank >= 0 && rank < size() && local_rank_of_[static_cast<size_t>(rank)] >= 0;
}

void SharedMemoryTransport::send(int to, SharedBytes message) {
  HORON_CHECK(reaches(to) && to != rank(), "a message goes to another rank of this host");
  require_sendable(message);
  const auto local_rank = static_cast<size_t>(local_rank_of_[static_cast<size_t>(to)]);
  Peer& peer = peers_[local_rank];
  Outgoing outgoing;
  const uint64_t length = message.size();
  std::memcpy(outgoing.length.data(), &length, sizeof length);
  outgoing.bytes = std::move(message);
  peer.queue.push_back(std::move(outgoing));
  ++queued_;
  push_queue(peer, local_rank);
}

// True once the whole message is in the ring.
bool SharedMemoryTransport::push(Peer& peer, Outgoing& message) {
  constexpr size_t kPrefix = sizeof(LengthPrefix);
  if (message.done < kPrefix) {
    message.done += peer.out.write(std::span(message.length).subspan(message.done));
    if (message.done < kPrefix) return false;
  }
  const std::span<const std::byte> bytes = message.bytes;
  message.done += peer.out.write(bytes.subspan(message.done - kPrefix));
  return message.done == kPrefix + bytes.size();
}

void SharedMemoryTransport::push_queue(Peer& peer, size_t local_rank) {
  bool moved = false;
  while (!peer.queue.empty()) {
    const size_t before = peer.queue.front().done;
    const bool whole = push(peer, peer.queue.front());
    moved |= peer.queue.front().done != before;
    if (!whole) break;
    peer.queue.pop_front();
    --queued_;
  }
  if (moved) group_.doorbell(static_cast<int>(local_rank)).ring();
}

void SharedMemoryTransport::push_queues() {
  for (size_t i = 0; queued_ > 0 && i < peers_.size(); ++i) push_queue(peers_[i], i);
}

// Reads on into `bytes`, which is the part of the message from `begin` on. True once it is full.
bool SharedMemoryTransport::take(Peer& peer, std::span<std::byte> bytes, size_t begin) {
  size_t& done = peer.incoming.done;
  while (done - begin < bytes.size()) {
    const size_t count = peer.in.read(bytes.subspan(done - begin));
    if (count == 0) return false;
    done += count;
  }
  return true;
}

// The next message of this peer, if it is here as a whole.
std::optional<Bytes> SharedMemoryTransport::pull(Peer& peer) {
  constexpr size_t kPrefix = sizeof(LengthPrefix);
  Incoming& incoming = peer.incoming;
  if (incoming.done < kPrefix && !take(peer, incoming.length, 0)) return std::nullopt;
  uint64_t length = 0;
  std::memcpy(&length, incoming.length.data(), sizeof length);
  if (length > kMessageBytesMax) {
    throw Error(ErrorCode::Internal,
                concat("rank ", peer.rank, " sent a control message of ", length,
                       " bytes: the memory that the ranks of this host share is damaged"));
  }
  incoming.bytes.resize(length);  // also the next time, where there was no memory for it
  if (!take(peer, incoming.bytes, kPrefix)) return std::nullopt;
  incoming.done = 0;
  return std::exchange(incoming.bytes, {});
}

std::optional<Transport::Message> SharedMemoryTransport::receive() {
  push_queues();
  const auto me = static_cast<size_t>(topology_.local_rank);
  for (size_t i = 0; i < peers_.size(); ++i) {
    const size_t from = (next_ + i) % peers_.size();
    if (from == me || !peers_[from].in.readable()) continue;
    std::optional<Bytes> bytes = pull(peers_[from]);
    if (peers_[from].in.take_writer_waits()) group_.doorbell(static_cast<int>(from)).ring();
    if (!bytes) continue;
    next_ = from + 1;
    return Message{peers_[from].rank, std::move(*bytes)};
  }
  return std::nullopt;
}

bool SharedMemoryTransport::flushed() {
  push_queues();
  return queued_ == 0;
}

void SharedMemoryTransport::wait(std::chrono::nanoseconds timeout, const WaitPolicy& policy) {
  push_queues();
  const auto me = static_cast<size_t>(topology_.local_rank);
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (i != me && peers_[i].in.readable()) return;
  }
  group_.doorbell(topology_.local_rank).wait(timeout, policy);
}

std::vector<Transport::DeadPeer> SharedMemoryTransport::dead_peers() {
  std::vector<DeadPeer> dead;
  for (const int local_rank : group_.dead_local_ranks()) {
    const int rank = topology_.local_ranks[static_cast<size_t>(local_rank)];
    dead.push_back({rank, name_of_process(rank, group_.process_id(local_rank))});
  }
  return dead;
}

}  // namespace horon::core
