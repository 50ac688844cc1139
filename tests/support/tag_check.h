// Messages that are checked on their way: how many bytes are sent and received, how many messages
// are in flight at once, and whether their tags tell them apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "horon/tests/support/thread_messages.h"

namespace horon::ops {

// Expects that no message has the tag of another one that is in flight to, or from, the same peer.
class TagCheck final : public Messages {
 public:
  TagCheck(MessageHub& hub, int rank) : messages_(hub, rank) {}

  // The next receive that is posted does not complete before no other message has been posted for a
  // while.
  void delay_first_receive() { delays_ = true; }
  int64_t sent() const { return sent_; }  // bytes
  int64_t received() const { return received_; }
  size_t most_under_way() const { return most_under_way_; }
  int largest_tag() const { return largest_tag_; }

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    sent_ += bytes;
    return note({true, to, tag}, messages_.send(to, tag, data, bytes));
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    received_ += bytes;
    const Id id = note({false, from, tag}, messages_.receive(from, tag, data, bytes));
    if (std::exchange(delays_, false)) late_ = id;
    return id;
  }
  void progress() override {
    messages_.progress();
    ++quiet_;
  }
  bool take_if_over(Id id) override {
    constexpr int enough_quiet = 100;  // calls of progress() since the last message was posted
    if (id == late_ && quiet_ < enough_quiet) return false;
    if (!messages_.take_if_over(id)) return false;
    under_way_.erase(message_of_.at(id));
    return true;
  }

 private:
  using Message = std::tuple<bool, int, int>;  // whether it is sent, peer, tag

  Id note(const Message& message, Id id) {
    const int tag = std::get<2>(message);
    EXPECT_TRUE(under_way_.insert(message).second) << "tag " << tag;
    most_under_way_ = std::max(most_under_way_, under_way_.size());
    largest_tag_ = std::max(largest_tag_, tag);
    message_of_[id] = message;
    quiet_ = 0;
    return id;
  }

  ThreadMessages messages_;
  bool delays_ = false;
  std::optional<Id> late_;
  int64_t sent_ = 0;
  int64_t received_ = 0;
  size_t most_under_way_ = 0;
  int largest_tag_ = -1;
  std::set<Message> under_way_;
  std::map<Id, Message> message_of_;
  int quiet_ = 0;
};

}  // namespace horon::ops
