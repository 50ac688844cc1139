#include "horon/ops/nccl/launch_order.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::ops {

int64_t LaunchOrder::propose(uint32_t set) {
  const bool is_next = waiting_.emplace(set, ++latest_).second;
  HORON_CHECK(is_next, "a set has one collective at a time");
  return latest_;
}

void LaunchOrder::settle(uint32_t set, int64_t number) {
  waiting_.at(set) = number;
  latest_ = std::max(latest_, number);
}

bool LaunchOrder::may_enter(uint32_t set) const {
  const std::pair<int64_t, uint32_t> mine(waiting_.at(set), set);
  return std::all_of(waiting_.begin(), waiting_.end(), [&](const auto& other) {
    return std::pair<int64_t, uint32_t>(other.second, other.first) >= mine;
  });
}

void LaunchOrder::wait_in(core::MemoryQueue& queue, uint32_t set) {
  if (last_ == nullptr || last_set_ == set) return;
  const bool waits = queue.wait_for(*last_);
  HORON_CHECK(waits, "the sets of a rank have streams of one device");
}

void LaunchOrder::becomes_last(core::MemoryQueue& queue, uint32_t set) {
  last_ = queue.record();
  last_set_ = set;
}

}  // namespace horon::ops
