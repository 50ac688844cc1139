// The place of one line's next collective among those of the other lines (launch_order.h).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/nccl/launch_order.h"

namespace horon::ops {

// One collective of the line after the other takes the turn. One thread at a time.
class LaunchTurn {
 public:
  // Whether a member proposes a number as soon as its own collective has come, or once those of all
  // members have. A proposed number holds up collectives with a larger one here until all members
  // have proposed theirs. If a member may come late, and first wait for one that is so held up,
  // they must meet first.
  enum class Propose : uint8_t { AtOnce, WhenAllHaveCome };

  // `allreduce`: on host memory, among the members of the line. It outlives this and keeps the
  // order of its starts. Its other users must start it at the same points of the line's order.
  LaunchTurn(std::shared_ptr<LaunchOrder> order, LaunchLine line, core::CollectiveOp& allreduce,
             Propose propose = Propose::AtOnce)
      : order_(std::move(order)), line_(line), allreduce_(allreduce), propose_(propose) {}

  // Asked again and again: true once the collective may enter the stream. The members agree on its
  // number by a small allreduce on host memory in the middle of it, as in nccl_id_exchange.h. Never
  // waits. Throws Error.
  bool may_enter();
  // After may_enter() has said false: the others may wait for this member's part in the allreduce,
  // which goes on when it is asked again.
  bool must_be_driven() const { return flight_ != nullptr && is_driven_; }
  // Before the collective is enqueued: makes it run behind what other lines have in their streams.
  // Throws Error.
  void enter(core::MemoryQueue& queue) { order_->wait_in(queue, line_); }
  // After it is enqueued: makes others run behind it. Also for collectives from before the line had
  // to keep an order. Throws Error.
  void becomes_last(core::MemoryQueue& queue) { order_->becomes_last(queue, line_); }
  // The collective has entered: the next one takes the turn.
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
