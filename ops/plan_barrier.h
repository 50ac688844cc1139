// Barrier without a collective. A barrier starts when its plan, or the gate of a frozen entry, says
// that every member has come; so nothing is left to do.
#pragma once

#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"

namespace horon::ops {

// A member that has not submitted the barrier has joined or is absent, and counts as having come.
class PlanBarrier final : public core::CollectiveOp {
 public:
  std::string_view name() const override { return "plan_barrier"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;
};

}  // namespace horon::ops
