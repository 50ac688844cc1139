// The collectives that move blocks, and broadcast, among ranks that share one host and can map each
// other's memory. Reducescatter sums in rank order.
#pragma once

#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/host/block_exchange.h"

namespace horon::ops {

class SharedMemoryExchange final : public core::CollectiveOp {
 public:
  // `kind`: Broadcast, Allgather, Reducescatter, Alltoall, Gather or Scatter. The ops of all kinds
  // share one exchange.
  SharedMemoryExchange(std::shared_ptr<BlockExchange> exchange, CollectiveKind kind);

  // "shm_broadcast", "shm_allgather" and so on.
  std::string_view name() const override { return name_; }
  std::string refusal(const core::BatchFacts& facts) const override;
  bool same_in_parts(const core::Batch& like) const override {
    return like.kind == CollectiveKind::Broadcast || like.kind == CollectiveKind::Allgather ||
           like.kind == CollectiveKind::Reducescatter;
  }
  bool writes_blocks_apart() const override { return true; }
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  const std::shared_ptr<BlockExchange> exchange_;
  const CollectiveKind kind_;
  const std::string name_;
};

}  // namespace horon::ops
