// Allreduce of larger memory among the ranks of one host, piece by piece, each piece by whoever is
// there ("direct push").
//
// Every rank publishes where its memory lies. When all have done so, any rank that steps claims
// pieces, sums each in rank order in registers and stores the sum into the buffers of all ranks.
// Each byte is read once and written once, which is the least that is possible in place, and the
// lines that a rank has read are the ones that it writes, which is what caches do best. No rank has
// a share that the others must wait for: a rank that is asleep costs nobody anything.
//
// Memory that the peers can't reach is staged: its owner copies a piece into shareable memory,
// where it is summed like any other, and copies the sum out; several pieces are under way at a
// time. Each rank stages or not as its own memory demands. As soon as one does, the pieces are
// dealt out in turn instead of claimed: a rank sums its pieces from its own memory to its own
// memory and stages only those that others sum.
//
// All words in shared memory only grow, over all allreduces that use a slot, so nothing is ever
// reset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

class PieceAllreduce {
 public:
  // `area`: area_bytes() of zeroed memory that all ranks share, 64-byte aligned.
  PieceAllreduce(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int ranks);
  // How an allreduce is cut; a multiple of 64.
  static int64_t piece_bytes(int64_t bytes, int ranks);

  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  static constexpr uint64_t kSlots = 8;   // allreduces in flight
  static constexpr uint64_t kStaged = 8;  // pieces of one rank in staging memory

  struct alignas(64) Word {
    std::atomic<uint64_t> value;
  };
  // Written by its rank; the plain fields before `available` first passes the slot's base.
  struct alignas(64) Contribution {
    std::atomic<uint64_t> available;  // pieces, counted over the life of the slot
    uint64_t staged;                  // 1: input and output are one ring of kStaged pieces
    core::SharedAddress input;
    core::SharedAddress output;
  };
  struct SharedSlot {
    Word claimed;              // pieces over the life of the slot
    Word done;                 // pieces over the life of the slot
    Word piece_done[kStaged];  // [piece % kStaged]: 1 + the last piece that is done
    // Then Contribution[ranks] and Word[ranks]: how many allreduces of this slot a rank has left.
  };
  struct OwnSlot {
    uint64_t pieces = 0;  // of all allreduces that were started in this slot
    uint64_t uses = 0;
  };

  static size_t slot_bytes(int ranks);
  SharedSlot& shared_slot(uint64_t index) const;
  Contribution* contributions(SharedSlot& slot) const;
  Word* left(SharedSlot& slot) const;

  core::LocalGroup& group_;
  const int rank_;
  const int ranks_;
  Waiters progress_;  // for pieces to sum or to copy out, and for the end
  Waiters reuse_;     // for a free slot
  std::byte* slots_;
  uint64_t next_ = 0;
  OwnSlot own_[kSlots];
  std::vector<std::shared_ptr<std::byte>>
      staging_;  // unused; each for kStaged of the longest pieces
};

}  // namespace horon::ops
