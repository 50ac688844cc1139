#include "horon/ops/plan_barrier.h"

#include "horon/ops/host/host_refusal.h"

namespace horon::ops {
namespace {

class InFlightBarrier final : public core::InFlight {
 public:
  core::Progress step() override { return core::Progress::Done; }
};

}  // namespace

std::string PlanBarrier::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Barrier);
}

std::unique_ptr<core::InFlight> PlanBarrier::start(core::Batch /*batch*/) {
  return std::make_unique<InFlightBarrier>();
}

}  // namespace horon::ops
