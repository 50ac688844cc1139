// Messages between two ranks have no names, only tags and an order: each gets a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "horon/core/runtime/handle.h"

namespace horon::torch_detail {

struct Message {
  int from = 0;  // ranks of the job; one of them is this rank
  int to = 0;
  int tag = 0;
  std::string of_set = {};  // part of the name; empty: the world
};

// Any thread, also one that steps the loop: nothing is called under the lock.
class MessageNumbers {
 public:
  // `begins`: what names begin with.
  explicit MessageNumbers(std::string begins) : begins_(std::move(begins)) {}

  // How to tell whether a message is in flight.
  struct UnderWay {
    bool beginning = false;          // its call has not submitted it yet
    std::weak_ptr<void> until_gone;  // in flight until this is gone
    std::weak_ptr<core::HandleState> handle = {};
    bool holds() const;
  };
  struct Taken {
    std::string name;
    UnderWay* under_way = nullptr;  // for note()
  };
  // Takes the number of the next message, which is `beginning` until note(). Throws Error(Limit) if
  // too many of the tag are in flight; then no message has been counted.
  Taken take(const Message& message);
  void note(const Taken& taken, UnderWay under_way);

  // The name of the next message and its number, counted from 0. Throws as take().
  std::pair<std::string, uint64_t> next(const Message& message);
  // Takes `number`, if it is still the next one.
  bool take(const Message& message, uint64_t number,
            const std::shared_ptr<core::HandleState>& handle);

  // So many messages of one tag may be in flight from one rank to another; then the names repeat.
  static constexpr size_t kNumbers = 1024;

 private:
  struct Sequence {
    uint64_t count = 0;
    std::deque<UnderWay> latest;  // of each number so far
  };
  // Under the lock.
  Sequence& sequence_of(const Message& message);
  UnderWay& next_place(Sequence& sequence, const Message& message) const;
  std::string name_of(const Message& message, uint64_t count) const;

  const std::string begins_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int, std::string>, Sequence> sequences_;
};

}  // namespace horon::torch_detail
