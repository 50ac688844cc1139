// The place of the next collective of one process set among those of the other sets.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/nccl/launch_order.h"

namespace horon::ops {

// One collective after the other takes it. One thread at a time.
class LaunchTicket {
 public:
  // `allreduce` runs on host memory, keeps StartOrder::Log, and outlives this.
  LaunchTicket(std::shared_ptr<LaunchOrder> order, uint32_t set, core::CollectiveOp& allreduce)
      : order_(std::move(order)), set_(set), allreduce_(allreduce) {}

  // Asked again and again: true once the collective may enter the stream. The members agree on its
  // number by a small allreduce on host memory in the middle of it, as in nccl_id_exchange.h. Never
  // waits. Throws Error.
  bool may_enter();
  // It has entered.
  void entered();

 private:
  const std::shared_ptr<LaunchOrder> order_;
  const uint32_t set_;
  core::CollectiveOp& allreduce_;
  bool proposed_ = false;
  bool settled_ = false;
  int64_t number_ = 0;
  std::unique_ptr<core::InFlight> flight_;
};

}  // namespace horon::ops
