#include "horon/ops/nccl/launch_turn.h"

namespace horon::ops {

bool LaunchTurn::may_enter() {
  if (!proposed_) {
    number_ = order_->propose(set_);
    proposed_ = true;
    core::Batch batch;
    batch.dtype = DataType::Int64;
    batch.reduce_op = ReduceOp::Max;
    batch.count = 1;
    batch.output = reinterpret_cast<std::byte*>(&number_);
    batch.input = batch.output;
    flight_ = allreduce_.start(std::move(batch));
  }
  if (!settled_) {
    // The messages of one number are few: as long as they come, nobody needs to poll for them.
    core::Progress progress = core::Progress::Advanced;
    while (progress == core::Progress::Advanced) progress = flight_->step();
    if (progress != core::Progress::Done) return false;
    flight_.reset();
    order_->settle(set_, number_);
    settled_ = true;
  }
  return order_->may_enter(set_);
}

void LaunchTurn::entered(core::MemoryQueue& queue) {
  order_->becomes_last(queue, set_);
  order_->entered(set_);
  proposed_ = settled_ = false;
}

}  // namespace horon::ops
