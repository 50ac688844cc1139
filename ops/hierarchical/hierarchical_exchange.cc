#include "horon/ops/hierarchical/hierarchical_exchange.h"

#include <utility>

#include "horon/core/base/text.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {

HierarchicalExchange::HierarchicalExchange(std::shared_ptr<MessageExchange> exchange,
                                           CollectiveKind kind, bool one_rank_each)
    : exchange_(std::move(exchange)),
      kind_(kind),
      one_rank_each_(one_rank_each),
      name_(core::concat("hier_", to_string(kind))) {}

std::string HierarchicalExchange::refusal(const core::BatchFacts& facts) const {
  std::string why = host_refusal(facts, kind_);
  const bool repeats = kind_ == CollectiveKind::Allgather || kind_ == CollectiveKind::Reducescatter;
  if (why.empty() && repeats && !one_rank_each_) return "a host has several ranks";
  return why;
}

std::unique_ptr<core::InFlight> HierarchicalExchange::start(core::Batch batch) {
  return exchange_->start(std::move(batch));
}

}  // namespace horon::ops
