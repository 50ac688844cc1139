// The one block that a rank sends another in an exchange, or gets from it, in messages of bounded
// length, a few of which are under way at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class BlockFlow {
 public:
  // `data` is only read if the block is sent.
  BlockFlow(int peer, std::byte* data, int64_t bytes, bool sends)
      : peer_(peer), data_(data), bytes_(bytes), sends_(sends) {}

  // Returns a measure of the bytes that MPI copies for what is posted; 0 if nothing has ended and
  // no more may be posted. Both ranks use the same tag.
  int64_t advance(Messages& messages, int tag, size_t messages_at_once) {
    int64_t touched = 0;
    while (!under_way_.empty() && messages.take_if_over(under_way_.front())) {
      under_way_.pop_front();
      over_ = std::min(over_ + kMessageBytes, bytes_);
      ++touched;
    }
    while (posted_ < bytes_ && under_way_.size() < messages_at_once) {
      const int64_t length = std::min(kMessageBytes, bytes_ - posted_);
      std::byte* const place = data_ + posted_;
      under_way_.push_back(sends_ ? messages.send_unanswered(peer_, tag, place, length)
                                  : messages.receive(peer_, tag, place, length));
      posted_ += length;
      touched += Messages::kPostCost + (sends_ ? length : 0);
    }
    return touched;
  }

  // More is to be posted, and the peer waits for it.
  bool has_more() const { return posted_ < bytes_; }
  bool over() const { return over_ == bytes_; }

 private:
  int peer_;
  std::byte* data_;
  int64_t bytes_;
  bool sends_;
  int64_t posted_ = 0;  // bytes
  int64_t over_ = 0;    // bytes, from the beginning of the block
  std::deque<Messages::Id> under_way_;
};

}  // namespace horon::ops
