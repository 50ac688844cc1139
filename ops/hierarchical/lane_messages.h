// The messages of some members among themselves, numbered from 0.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class LaneMessages final : public Messages {
 public:
  // `members`: in the order of their numbers.
  LaneMessages(std::shared_ptr<Messages> all, std::vector<int> members)
      : all_(std::move(all)), members_(std::move(members)) {}

  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    return all_->send(of(to), tag, data, bytes);
  }
  Id send_and_await(int to, int tag, const std::byte* data, int64_t bytes) override {
    return all_->send_and_await(of(to), tag, data, bytes);
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    return all_->receive(of(from), tag, data, bytes);
  }
  void progress() override { all_->progress(); }
  bool take_if_over(Id id) override { return all_->take_if_over(id); }

 private:
  int of(int member) const { return members_.at(static_cast<size_t>(member)); }

  const std::shared_ptr<Messages> all_;
  const std::vector<int> members_;
};

}  // namespace horon::ops
