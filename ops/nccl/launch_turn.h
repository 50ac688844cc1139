// The place of the next collective of one line among those of the others (launch_order.h).
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
  // Whether a member proposes a number as soon as its own collective has come, or once those of all
  // members have. A number that is proposed holds up what gets a larger one here until all members
  // have proposed theirs. Where one of them may come late, and wait for just that before it comes,
  // they must meet first.
  enum class Propose : uint8_t { AtOnce, WhenAllHaveCome };

  // `allreduce`: on host memory, among the members of the line. It outlives this, keeps the order
  // of its starts, and what else uses it starts at the same points of the line's order.
  LaunchTurn(std::shared_ptr<LaunchOrder> order, LaunchLine line, core::CollectiveOp& allreduce,
             Propose propose = Propose::AtOnce)
      : order_(std::move(order)), line_(line), allreduce_(allreduce), propose_(propose) {}

  // Asked again and again: true once the collective may enter the stream. The members agree on its
  // number by a small allreduce on host memory in the middle of it, as in nccl_id_exchange.h. Never
  // waits. Throws Error.
  bool may_enter();
  // After it has said false: the others may wait for what this member does in the allreduce when it
  // is asked again.
  bool must_be_driven() const { return flight_ != nullptr && is_driven_; }
  // Before it is enqueued: it runs behind what other lines have in their streams. Throws Error.
  void enter(core::MemoryQueue& queue) { order_->wait_in(queue, line_); }
  // After it is enqueued, also for collectives that came before the line had to keep an order:
  // others run behind it. Throws Error.
  void becomes_last(core::MemoryQueue& queue) { order_->becomes_last(queue, line_); }
  // It has entered: the next one takes the turn.
  void entered();

 private:
  enum class Stage : uint8_t { New, Meeting, Numbering, Settled };

  void begin_maximum(int64_t mine);
  bool has_maximum();

  const std::shared_ptr<LaunchOrder> order_;
  const LaunchLine line_;
  core::CollectiveOp& allreduce_;
  const Propose propose_;
  Stage stage_ = Stage::New;
  int64_t number_ = 0;
  std::unique_ptr<core::InFlight> flight_;
  bool is_driven_ = false;  // the flight, as of its latest step
};

}  // namespace horon::ops
