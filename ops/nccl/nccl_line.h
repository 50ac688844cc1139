// A line of batches that make their calls on one NCCL communicator, one after the other. Several
// lines may share a communicator, and all lines share the device: their members agree on the order
// in which the calls enter it (launch_turn.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/launch_turn.h"
#include "horon/ops/nccl/nccl_communicator.h"

namespace horon::ops {

// One thread at a time.
class NcclLine {
 public:
  // `turn` null: nothing else enters the device. `ordered` false: the turn is used only from
  // keep_order() on.
  explicit NcclLine(std::shared_ptr<NcclCommunicator> communicator,
                    std::unique_ptr<LaunchTurn> turn = nullptr, bool ordered = true);

  // Batches make their calls in the order in which they took a turn, the same on every rank.
  uint64_t take_turn() { return next_turn_++; }
  // True: this turn may call now, and NCCL is ready for it. The first turn makes the communicator,
  // by asking until it is made. Throws if the communicator has failed or was aborted.
  bool may_call(uint64_t turn);
  // How to wait while may_call() is false: Driving while the members agree on something by a
  // collective that goes on only while it is stepped, else Polling.
  core::Progress wait() const;
  // Makes the calls of this turn, as one group, in the stream of `queue`, which lives as long as
  // the set. They run behind what other lines have enqueued before; but calls that are captured do
  // so in the queue alone, since a graph can't wait for what is outside of it. Throws Error.
  void call(CudaQueue& queue, const std::function<void(NcclApi&, NcclComm)>& calls);
  // After call(): true when all of it is in its stream. Then the next turn may call.
  bool is_enqueued();
  // From now on there are other lines. Call it at the same point of the line's order on all
  // members. Throws Error.
  void keep_order();

  // Scratch in the communicator's window; as CollectiveOp::shared_scratch(). Call it at the point
  // of the line's order where all earlier turns have called. If a window has been asked for, the
  // turn that calls next makes it.
  core::SharedScratch* shared_scratch(size_t bytes);

  NcclCommunicator& communicator() const { return *communicator_; }

 private:
  const std::shared_ptr<NcclCommunicator> communicator_;
  const std::unique_ptr<LaunchTurn> turn_;
  bool ordered_;
  uint64_t next_turn_ = 0;
  uint64_t calling_ = 0;        // the turn whose calls may be made
  CudaQueue* queue_ = nullptr;  // of the calls, but for captured ones; null: there were none
  bool captured_ = false;       // the calls of this turn
};

}  // namespace horon::ops
