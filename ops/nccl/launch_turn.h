// The place of the next collective of one process set among those of the other sets.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/nccl/launch_order.h"

namespace horon::ops {

// One collective after the other takes it. One thread at a time.
class LaunchTurn {
 public:
  // `allreduce` runs on host memory, keeps StartOrder::Log, and outlives this.
  LaunchTurn(std::shared_ptr<LaunchOrder> order, uint32_t set, core::CollectiveOp& allreduce)
      : order_(std::move(order)), set_(set), allreduce_(allreduce) {}

  // Asked again and again: true once the collective may enter the stream. The members agree on its
  // number by a small allreduce on host memory in the middle of it, as in nccl_id_exchange.h. Never
  // waits. Throws Error.
  bool may_enter();
  // Before it is enqueued: it runs behind what other sets have in their streams. Throws Error.
  void enter(core::MemoryQueue& queue) { order_->wait_in(queue, set_); }
  // It has entered: others run behind it. Throws Error.
  void entered(core::MemoryQueue& queue);
  // The same for collectives that came before the set had to keep an order. Throws Error.
  void entered_before(core::MemoryQueue& queue) { order_->becomes_last(queue, set_); }

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
