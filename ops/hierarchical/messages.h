// Messages between members of a set that need not share a host. They are posted, then driven by
// progress(). This is all that the collectives between hosts know of MPI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace horon::ops {

// Between two members, messages of one tag arrive in the order in which they were posted. One
// thread at a time. All functions may throw Error(OperationFailed). Once one has thrown, all of
// them do: several collectives share the messages, and each must learn that its own may be lost.
class Messages {
 public:
  using Id = uint32_t;  // of one message, until it is over
  // Tags are less than this. The allreduce has those below kFirstBlockTag, the collectives that
  // move blocks have the others.
  static constexpr int kTags = 16384;
  static constexpr int kFirstBlockTag = kTags / 2;

  // Posting one message takes as long as copying so many bytes. The work in a step is measured so:
  // this for each posted message, and the bytes of those that are sent.
  static constexpr int64_t kPostCost = 4 << 10;

  virtual ~Messages() = default;

  // The memory belongs to the message until it is over. `bytes` is at most kBytesMax; a receive
  // names just what its sender sends.
  static constexpr int64_t kBytesMax = int64_t{1} << 30;
  virtual Id send(int to, int tag, const std::byte* data, int64_t bytes) = 0;
  // The same, but over only once the receiver has posted its receive.
  virtual Id send_and_await(int to, int tag, const std::byte* data, int64_t bytes) {
    return send(to, tag, data, bytes);
  }
  // For a message that nobody answers. Now and then one waits for its receiver, so that the sender
  // can't run ahead without limit, in one collective or in many: MPI accepts a message before its
  // receive is posted, and the receiving rank must then store it.
  Id send_unanswered(int to, int tag, const std::byte* data, int64_t bytes) {
    const auto receiver = static_cast<size_t>(to);
    if (receiver >= ahead_.size()) ahead_.resize(receiver + 1);
    ahead_[receiver] += bytes + kPostCost;
    if (ahead_[receiver] < kBytesAhead) return send(to, tag, data, bytes);
    ahead_[receiver] = 0;
    return send_and_await(to, tag, data, bytes);
  }
  // How far the sender may run ahead; each message counts kPostCost more than its bytes.
  static constexpr int64_t kBytesAhead = 480 << 10;
  virtual Id receive(int from, int tag, std::byte* data, int64_t bytes) = 0;
  // Drives all messages, and learns which of them are over.
  virtual void progress() = 0;
  // Whether progress() has found the message to be over. Returns true once: afterwards the id is
  // given to another message.
  virtual bool take_if_over(Id id) = 0;

 private:
  std::vector<int64_t> ahead_;  // [receiver]: of messages since the last one that was awaited
};

}  // namespace horon::ops
