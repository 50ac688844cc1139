// Barriers among the ranks of a process set.
#pragma once

#include <chrono>
#include <memory>

#include "horon/ops/session/process_set.h"

namespace horon {

namespace core {
class HandleState;
}

// Returns when every rank of the set has called it. Throws Error.
void barrier(const ProcessSet& process_set = {});

// A barrier under way. Copies refer to the same one. It may be dropped without wait(): the barrier
// goes on.
class BarrierHandle {
 public:
  BarrierHandle() = default;
  explicit BarrierHandle(std::shared_ptr<core::HandleState> state);

  // Whether it has ended, well or badly. Never blocks.
  bool poll() const;
  // Blocks until all ranks have come. Throws its error, each time.
  void wait() const;
  // As wait(), but throws Error(Timeout) when the time is over. The barrier goes on, and may be
  // waited for again.
  void wait(std::chrono::nanoseconds timeout) const;

 private:
  const core::HandleState& state() const;
  std::shared_ptr<core::HandleState> state_;
};

// Says "this rank has come" and returns at once. Up to 1,024 may be under way; one more waits for
// the oldest. The n-th call of one rank meets the n-th of the others; calls of barrier() are
// counted apart. Throws Error.
BarrierHandle barrier_async(const ProcessSet& process_set = {});

}  // namespace horon
