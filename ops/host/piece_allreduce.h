// Allreduce of larger memory among the ranks of one host. The memory is cut into pieces; each piece
// is summed by the rank that claims it ("direct push").
//
// Every rank publishes the address of its memory. When all ranks have done so, any rank that steps
// claims pieces. It sums a piece in registers, in rank order, and stores the sum into the buffers
// of all ranks. Each byte is read once and written once, the least that is possible in place, and a
// rank writes the cache lines that it has just read. No rank has a fixed share, so a rank that
// sleeps does not hold up the others.
//
// Memory that the other ranks can't reach is staged: its owner copies a piece into a ring of shared
// memory, where it is summed like any other, and copies the sum out. Several pieces are in the ring
// at a time: one for each rank if it has the room, so that all can sum at once, and at least two.
// Each rank stages if its own memory needs it. As soon as one rank stages, pieces are assigned in
// turn instead of claimed: a rank sums its own pieces directly in its memory and stages only those
// that other ranks sum.
//
// All counters in shared memory only grow, over all allreduces that use a cell, so none is reset.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/core/host/shared_counter.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

class PieceAllreduce {
 public:
  // `area`: area_bytes() of zeroed memory that all ranks share, 64-byte aligned.
  PieceAllreduce(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int ranks);
  // The length of a piece; a multiple of 64. `wish`: Batch::piece_bytes.
  static int64_t piece_bytes(int64_t bytes, int ranks, int64_t wish = 0);
  // The range of useful wishes for an allreduce of so many bytes.
  static core::PieceSizes piece_sizes(int64_t bytes, int ranks);

  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  static constexpr uint64_t kCells = 8;  // allreduces in flight

  // Written by its rank. The plain fields are written before `available` passes the cell's base.
  struct alignas(64) Contribution {
    std::atomic<uint64_t> available;  // pieces that can be summed, over the life of the cell
    uint32_t staged;                  // 1: input and output are the ring of this rank
    uint32_t wants_output;            // 0: the output need not be written
    core::SharedAddress input;
    core::SharedAddress output;
  };
  struct SharedCell {
    core::SharedCounter claimed;  // pieces over the life of the cell
    core::SharedCounter done;     // pieces over the life of the cell
    // Contribution[ranks] follows, then core::SharedCounter[ranks]: how many allreduces of this
    // cell each rank has finished. Then core::SharedCounter[staged_max(ranks)], at
    // [piece % staged_max(ranks)]: 1 + the last such piece that is summed.
  };
  // By rank, addresses in this process.
  struct Peers {
    std::vector<std::byte*> inputs;
    std::vector<std::byte*> outputs;  // null: not wanted
    std::vector<bool> reads_ring;     // its pieces are read from its ring
    std::vector<const std::byte*> piece_inputs;
    std::vector<std::byte*> piece_outputs;  // of those that want one
  };
  struct OwnCell {
    uint64_t pieces = 0;  // in all allreduces that this rank has started in the cell
    uint64_t uses = 0;
  };

  // Pieces of one rank in staging memory, at most.
  static uint64_t staged_max(int ranks);
  static size_t cell_bytes(int ranks);
  Peers take_spare_peers();
  void keep_spare(Peers peers);
  SharedCell& shared_cell(uint64_t index) const;
  Contribution* contributions(SharedCell& cell) const;
  core::SharedCounter* left(SharedCell& cell) const;
  core::SharedCounter* pieces_done(SharedCell& cell) const;

  core::LocalGroup& group_;
  const int rank_;
  const int ranks_;
  Waiters progress_;  // ranks that wait for pieces to sum or to copy out, or for the end
  Waiters reuse_;     // ranks that wait for a free cell
  std::byte* cells_;
  uint64_t next_ = 0;
  OwnCell own_[kCells];
  std::vector<std::shared_ptr<std::byte>> staging_;  // rings that are free, all of one length
  std::vector<Peers> spare_peers_;  // emptied, so that the next allreduce needs no memory
};

}  // namespace horon::ops
