#include "horon/ops/hierarchical/hierarchical_exchange.h"

#include <utility>

#include "horon/core/base/text.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {

HierarchicalExchange::HierarchicalExchange(std::shared_ptr<ExchangeMachine> machine,
                                           CollectiveKind kind)
    : machine_(std::move(machine)), kind_(kind), name_(core::concat("hier_", to_string(kind))) {}

std::string HierarchicalExchange::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, kind_);
}

std::unique_ptr<core::InFlight> HierarchicalExchange::start(core::Batch batch) {
  return machine_->start(std::move(batch));
}

}  // namespace horon::ops
