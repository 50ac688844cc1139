// A line of batches that make their calls on one NCCL communicator, one after the other. Several
// lines may share a communicator, and all of them the device: in which order their calls enter it
// the members agree on (launch_turn.h).
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
  // `turn`: null: nothing else enters the device. `ordered`: false: the turn counts from
  // keep_order() on.
  explicit NcclLine(std::shared_ptr<NcclCommunicator> communicator,
                    std::unique_ptr<LaunchTurn> turn = nullptr, bool ordered = true);

  // Batches make their calls in the order in which they took a turn, the same on every rank.
  uint64_t take_turn() { return next_turn_++; }
  // True: it is this turn's, and NCCL is ready for a call. The first turn makes the communicator,
  // by asking until it is made. Throws if the communicator has failed or was aborted.
  bool may_call(uint64_t turn);
  // Where it is not true, how to wait: Driving while the members agree on something by a collective
  // that goes on only while it is stepped, else Polling.
  core::Progress wait() const;
  // Makes the calls of this turn, as one group, in the stream of `queue`, which lives as long as
  // the set. They run behind what other lines have enqueued before; but calls that are captured do
  // so in the queue alone, since a graph can't wait for what is outside of it. Throws Error.
  void call(CudaQueue& queue, const std::function<void(NcclApi&, NcclComm)>& calls);
  // After call(): true when all of it is in its stream. The turn is the next one's then.
  bool is_enqueued();
  // There are other lines from now on. At the same point of the line's order on all members.
  // Throws Error.
  void keep_order();

  // Of the communicator's window, at the point of the line's order where all turns before have
  // called; as CollectiveOp::shared_scratch(). The turn that is called next makes it, if it has
  // been asked for.
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
