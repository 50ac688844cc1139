// Which calls the ops of a process set can run; asked at each submission.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "horon/core/execution/lent_ops.h"

namespace horon::core {

// Any thread.
class RunnableCalls {
 public:
  // The ops may end before this does. Null: there are none yet.
  explicit RunnableCalls(std::shared_ptr<const LentOps> ops) : ops_(std::move(ops)) {}

  // Why no op can run such a batch, as OpTable::why_none(), or why the op that can must not be
  // captured yet (CollectiveOp::refusal_of_capture_now()). Empty if one can, or if the ops have
  // ended: then the set or the job is over, which the caller learns elsewhere. Once a kind, type,
  // reduction and device have passed, asking about them costs one load, whatever the count.
  std::string fault(const BatchFacts& facts) const;
  // CollectiveOp::piece_sizes() of the op that runs such batches; all 0 if the ops have ended.
  // Throws Error(Config) if none can.
  PieceSizes piece_sizes(const Batch& like) const;

 private:
  template <class Ask>
  bool ask(const Ask& ask) const {
    return ops_ != nullptr && ops_->ask(ask);
  }

  static constexpr size_t kCount =
      size_t{kDeviceKindCount} * kCollectiveKindCount * kDataTypeCount * kReduceOpCount;

  const std::shared_ptr<const LentOps> ops_;
  mutable std::array<std::atomic<bool>, kCount> known_to_run_{};
};

}  // namespace horon::core
