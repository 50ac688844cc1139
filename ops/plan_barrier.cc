#include "horon/ops/plan_barrier.h"

#include "horon/core/execution/finished_flight.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {

std::string PlanBarrier::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Barrier);
}

std::unique_ptr<core::InFlight> PlanBarrier::start(core::Batch /*batch*/) {
  return std::make_unique<core::FinishedFlight>();
}

}  // namespace horon::ops
