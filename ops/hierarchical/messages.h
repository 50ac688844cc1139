// Messages between members of a set that need not share a host: posted, then looked after. What the
// collectives between hosts know of MPI.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horon::ops {

// Between two members, messages of one tag arrive in the order in which they were posted. One
// thread at a time. All functions may throw Error(OperationFailed). Once one has thrown, all of
// them do: several collectives share the messages, and each must learn that its own may be lost.
class Messages {
 public:
  using Ticket = uint32_t;
  // Tags are less than this. The allreduce has those below kFirstBlockTag, the collectives that
  // move blocks have the others.
  static constexpr int kTags = 16384;
  static constexpr int kFirstBlockTag = kTags / 2;

  virtual ~Messages() = default;

  // The memory belongs to the message until it is over. `bytes` is at most kBytesMax; a receive
  // names just what its sender sends.
  static constexpr int64_t kBytesMax = int64_t{1} << 30;
  virtual Ticket send(int to, int tag, const std::byte* data, int64_t bytes) = 0;
  virtual Ticket receive(int from, int tag, std::byte* data, int64_t bytes) = 0;
  // Drives all messages, and learns which of them are over.
  virtual void progress() = 0;
  // Whether progress() has found the message to be over. It says so once: then the ticket is given
  // to another one.
  virtual bool take_if_over(Ticket ticket) = 0;
};

}  // namespace horon::ops
