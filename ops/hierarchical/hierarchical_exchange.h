// The collectives among ranks on several hosts that move blocks, and broadcast.
#pragma once

#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// Does the work of several kinds of collectives, which share its tags. One thread at a time.
class ExchangeMachine {
 public:
  virtual ~ExchangeMachine() = default;
  // As CollectiveOp::same_in_parts().
  virtual bool same_in_parts(const core::Batch& like) const = 0;
  // Call it in the same order on all ranks. The machine outlives what it returns.
  virtual std::unique_ptr<core::InFlight> start(core::Batch batch) = 0;
};

class HierarchicalExchange final : public core::CollectiveOp {
 public:
  // `kind`: one that the machine does.
  HierarchicalExchange(std::shared_ptr<ExchangeMachine> machine, CollectiveKind kind);

  // "hier_allgather" and so on.
  std::string_view name() const override { return name_; }
  std::string refusal(const core::BatchFacts& facts) const override;
  bool same_in_parts(const core::Batch& like) const override {
    return machine_->same_in_parts(like);
  }
  // The machine numbers the batches of all its kinds in one sequence, so these ops must be started
  // in one order on all ranks, not each in its own.
  core::StartOrder start_order() const override { return core::StartOrder::Log; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  const std::shared_ptr<ExchangeMachine> machine_;
  const CollectiveKind kind_;
  const std::string name_;
};

}  // namespace horon::ops
