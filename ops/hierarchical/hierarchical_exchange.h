// The collectives that move blocks among ranks on several hosts. Between two ranks they send what
// one has for the other and nothing twice: an allgather or a reducescatter of hosts with several
// ranks would send the same to each of them, and is left to others.
#pragma once

#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/message_exchange.h"

namespace horon::ops {

class HierarchicalExchange final : public core::CollectiveOp {
 public:
  // `kind`: Allgather, Reducescatter, Alltoall, Gather or Scatter. The ops of all kinds share one
  // exchange. `one_rank_each`: on each host.
  HierarchicalExchange(std::shared_ptr<MessageExchange> exchange, CollectiveKind kind,
                       bool one_rank_each);

  // "hier_allgather" and so on.
  std::string_view name() const override { return name_; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  const std::shared_ptr<MessageExchange> exchange_;
  const CollectiveKind kind_;
  const bool one_rank_each_;
  const std::string name_;
};

}  // namespace horon::ops
