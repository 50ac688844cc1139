// What the MPI collectives of one process set share: a communicator, the order in which they post
// on it, and the set's scratch memory.
//
// MPI matches non-blocking collectives by the order in which they are posted. A collective that
// prepares its input in several steps posts some time after its start. So each collective takes a
// position at its start (starts have the same order on all ranks) and posts when all earlier ones
// have posted.
#pragma once

#include <cstdint>
#include <memory>

#include <mpi.h>

#include "horon/core/execution/scratch_pool.h"

namespace horon::ops {

// Used by one thread.
class MpiChannel {
 public:
  // The caller owns `communicator`, keeps it alive for longer than the channel and uses it for
  // nothing else. From now on errors on it are returned instead of fatal. No single MPI call moves
  // more than `piece_elements_max` elements, since MPI's counts are ints.
  MpiChannel(MPI_Comm communicator, std::shared_ptr<core::ScratchPool> scratch,
             int64_t piece_elements_max = int64_t{1} << 30);

  MPI_Comm communicator() const { return communicator_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  int64_t piece_elements_max() const { return piece_elements_max_; }

  uint64_t take_position() { return next_position_++; }
  bool is_turn_of(uint64_t position) const { return position == turn_; }
  void pass_turn() { ++turn_; }
  // A collective was destroyed before it posted: no later one would match its peers' any more.
  void set_broken() { broken_ = true; }
  bool broken() const { return broken_; }

  // A collective that has started must go on, so it takes what it needs, even beyond the pool's
  // limit.
  core::ScratchPool& scratch() const { return *scratch_; }

 private:
  MPI_Comm communicator_;
  std::shared_ptr<core::ScratchPool> scratch_;
  int rank_ = 0;
  int size_ = 1;
  int64_t piece_elements_max_;
  uint64_t next_position_ = 0;
  uint64_t turn_ = 0;
  bool broken_ = false;
};

}  // namespace horon::ops
