// The place of the next collective of one process set among those of the other sets.
#pragma once

#include <cstdint>
#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/launch_order.h"

namespace horon::ops {

// Which collective has entered the device of a rank last. Each set has a stream of its own that
// waits for its own tensors first, so what enters in one order need not run in it: a stream must
// also wait for the collective of another set that has entered before. One thread at a time.
class LastEntry {
 public:
  // The one of all sets that share `order`, which itself knows nothing of streams. Any thread.
  static std::shared_ptr<LastEntry> of(const std::shared_ptr<LaunchOrder>& order);

  // What is enqueued from now on by this set runs behind the last collective. Throws Error.
  void wait_in(CudaQueue& queue, uint32_t set);
  // What this set has enqueued by now is the last. Throws Error.
  void becomes(CudaQueue& queue, uint32_t set);

 private:
  uint32_t set_ = 0;
  std::shared_ptr<core::Event> event_;  // null: none has entered
};

// One collective after the other takes it. One thread at a time.
class LaunchTicket {
 public:
  // `allreduce` runs on host memory, keeps StartOrder::Log, and outlives this.
  LaunchTicket(std::shared_ptr<LaunchOrder> order, uint32_t set, core::CollectiveOp& allreduce)
      : order_(std::move(order)),
        last_entry_(LastEntry::of(order_)),
        set_(set),
        allreduce_(allreduce) {}

  // Asked again and again: true once the collective may enter the stream. The members agree on its
  // number by a small allreduce on host memory in the middle of it, as in nccl_id_exchange.h. Never
  // waits. Throws Error.
  bool may_enter();
  // Before it is enqueued: it runs behind what other sets have in their streams. Throws Error.
  void enter(CudaQueue& queue) { last_entry_->wait_in(queue, set_); }
  // It has entered: others run behind it. Throws Error.
  void entered(CudaQueue& queue);
  // The same for collectives that came before the set had to keep an order. Throws Error.
  void entered_before(CudaQueue& queue) { last_entry_->becomes(queue, set_); }

 private:
  const std::shared_ptr<LaunchOrder> order_;
  const std::shared_ptr<LastEntry> last_entry_;
  const uint32_t set_;
  core::CollectiveOp& allreduce_;
  bool proposed_ = false;
  bool settled_ = false;
  int64_t number_ = 0;
  std::unique_ptr<core::InFlight> flight_;
};

}  // namespace horon::ops
