// Messages between threads of one process, for collectives between hosts whose ranks are threads.
#pragma once

#include <atomic>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// What the ranks of a job have in common. A message is copied when both sides have posted it, so
// its sender must leave its memory alone until then.
class MessageHub {
 public:
  // A side of a message: over once it has met the other one.
  struct Side {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    // Read without the mutex: otherwise a rank that polls could keep the mutex from a rank that
    // wants to post.
    std::atomic<bool> over = false;
  };

  std::shared_ptr<Side> post(int from, int to, int tag, std::byte* data, int64_t bytes,
                             bool sends) {
    const std::lock_guard lock(mutex_);
    auto side = std::make_shared<Side>();
    side->data = data;
    side->bytes = bytes;
    Line& line = lines_[{from, to, tag}];
    auto& others = sends ? line.receives : line.sends;
    if (others.empty()) {
      (sends ? line.sends : line.receives).push_back(side);
      return side;
    }
    const std::shared_ptr<Side> other = others.front();
    others.pop_front();
    EXPECT_EQ(other->bytes, bytes) << "from " << from << " to " << to;
    std::memcpy(sends ? other->data : data, sends ? data : other->data, static_cast<size_t>(bytes));
    side->over.store(true, std::memory_order_release);
    other->over.store(true, std::memory_order_release);
    return side;
  }
  // Whether every message has met its other side.
  bool empty() {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, line] : lines_) {
      if (!line.sends.empty() || !line.receives.empty()) return false;
    }
    return true;
  }

 private:
  struct Line {
    std::list<std::shared_ptr<Side>> sends, receives;
  };
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, Line> lines_;
};

// One rank's messages. They complete in random order.
class ThreadMessages final : public Messages {
 public:
  ThreadMessages(MessageHub& hub, int rank)
      : hub_(hub), rank_(rank), random_(static_cast<uint64_t>(rank) + 3) {}

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    return keep(hub_.post(rank_, to, tag, const_cast<std::byte*>(data), bytes, true));
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    return keep(hub_.post(from, rank_, tag, data, bytes, false));
  }
  void progress() override {
    for (auto& side : sides_) {
      if (side == nullptr || random_() % 2 == 0) continue;
      if (side->over.load(std::memory_order_acquire)) side.reset();
    }
  }
  bool take_if_over(Id id) override { return sides_.at(id) == nullptr; }

 private:
  // Ids are not reused: take_if_over() returns the same if it is asked again about an id.
  Id keep(std::shared_ptr<MessageHub::Side> side) {
    sides_.push_back(std::move(side));
    return static_cast<Id>(sides_.size() - 1);
  }

  MessageHub& hub_;
  const int rank_;
  std::mt19937_64 random_;
  std::vector<std::shared_ptr<MessageHub::Side>> sides_;
};

}  // namespace horon::ops
