#include "horon/ops/nccl/launch_order.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::ops {

int64_t LaunchOrder::propose(LaunchLine line) {
  const bool is_next = waiting_.emplace(line, ++latest_).second;
  HORON_CHECK(is_next, "a line has one collective at a time");
  return latest_;
}

void LaunchOrder::settle(LaunchLine line, int64_t number) {
  waiting_.at(line) = number;
  latest_ = std::max(latest_, number);
}

bool LaunchOrder::may_enter(LaunchLine line) const {
  const std::pair<int64_t, LaunchLine> mine(waiting_.at(line), line);
  return std::all_of(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return std::pair<int64_t, LaunchLine>(other.second, other.first) >= mine;
  });
}

void LaunchOrder::wait_in(core::MemoryQueue& queue, LaunchLine line) {
  if (last_ == nullptr || last_line_ == line) return;
  const bool waits = queue.wait_for(*last_);
  HORON_CHECK(waits, "the lines of a rank have streams of one device");
}

void LaunchOrder::becomes_last(core::MemoryQueue& queue, LaunchLine line) {
  last_ = queue.record();
  last_line_ = line;
}

}  // namespace horon::ops
