// One NCCL communicator of a process set, as long as it lives: made without blocking, used by one
// batch after the other, and ended without ever waiting for a peer that may be dead.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "horon/ops/cuda/cuda_api.h"
#include "horon/ops/nccl/nccl_api.h"

namespace horon::ops {

// One thread at a time.
class NcclCommunicator {
 public:
  // Begins to make it: collective over the members, but does not wait for them. `rank`: this rank's
  // index among the members.
  NcclCommunicator(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda, int size,
                   const NcclUniqueId& id, int rank);
  // Ends it in order if all that was enqueued happens within a few seconds, else by abort().
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int size() const { return size_; }
  int rank() const { return rank_; }
  const std::shared_ptr<CudaApi>& cuda() const { return cuda_; }

  // Batches make their calls in the order in which they took a turn, the same on every rank.
  uint64_t take_turn() { return next_turn_++; }
  // True: it is this turn's, and NCCL is ready for a call. Throws if the communicator has failed or
  // was aborted.
  bool may_call(uint64_t turn);
  // Makes the calls of this turn, as one group.
  void call(const std::function<void(NcclApi&, NcclComm)>& calls);
  // After call(): true when all of it is in its stream. The turn is the next one's then.
  bool is_enqueued();
  // Throws if the communicator has failed since.
  void check();

  // The kernels that are in a stream end, whatever results that gives. At most a few seconds:
  // NCCL's own abort goes on in a thread of its own, if it takes longer.
  void abort() noexcept;

 private:
  bool is_idle();
  bool finalized_in_time() noexcept;

  const std::shared_ptr<NcclApi> nccl_;
  const std::shared_ptr<CudaApi> cuda_;
  const int size_;
  const int rank_;
  NcclComm comm_;  // null: aborted
  uint64_t next_turn_ = 0;
  uint64_t turn_ = 0;  // whose calls may be made
};

}  // namespace horon::ops
