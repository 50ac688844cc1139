#include "horon/ops/nccl/launch_turn.h"

#include "horon/ops/nccl/host_maximum.h"

namespace horon::ops {

bool LaunchTurn::may_enter() {
  if (stage_ == Stage::New) {
    const bool meets = propose_ == Propose::WhenAllHaveCome;
    begin_maximum(meets ? 0 : order_->propose(line_));
    stage_ = meets ? Stage::Meeting : Stage::Numbering;
  }
  if (stage_ == Stage::Meeting) {
    if (!has_maximum()) return false;
    begin_maximum(order_->propose(line_));
    stage_ = Stage::Numbering;
  }
  if (stage_ == Stage::Numbering) {
    if (!has_maximum()) return false;
    order_->settle(line_, number_);
    stage_ = Stage::Settled;
  }
  return order_->may_enter(line_);
}

void LaunchTurn::begin_maximum(int64_t mine) {
  number_ = mine;
  flight_ = start_host_maximum(allreduce_, DataType::Int64, &number_, 1);
}

bool LaunchTurn::has_maximum() {
  // One number takes few messages: as long as they come, this goes on without leaving the step.
  core::Progress progress = core::Progress::Advanced;
  while (progress == core::Progress::Advanced) progress = flight_->step();
  is_driven_ = progress == core::Progress::Driving;
  if (progress != core::Progress::Done) return false;
  flight_.reset();
  return true;
}

void LaunchTurn::entered() {
  order_->entered(line_);
  stage_ = Stage::New;
}

}  // namespace horon::ops
