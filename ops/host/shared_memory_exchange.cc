#include "horon/ops/host/shared_memory_exchange.h"

#include <utility>

#include "horon/core/base/text.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {

SharedMemoryExchange::SharedMemoryExchange(std::shared_ptr<BlockExchange> exchange,
                                           CollectiveKind kind)
    : exchange_(std::move(exchange)), kind_(kind), name_(core::concat("shm_", to_string(kind))) {}

std::string SharedMemoryExchange::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, kind_);
}

std::unique_ptr<core::InFlight> SharedMemoryExchange::start(core::Batch batch) {
  return exchange_->start(std::move(batch));
}

}  // namespace horon::ops
