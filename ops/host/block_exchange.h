// Broadcast, allgather, alltoall, gather, scatter and reducescatter among the ranks of one host:
// each rank has a block for some of the others.
//
// Every rank publishes where its input and its output lie. When all have done so, each block is
// copied by a rank that can reach both ends of it, straight from the input of one rank into the
// output of the other:
//   - both can be mapped: in pieces, each copied by that one of the two ranks which claims it, so
//     a rank that has less to do helps the other, and none waits for one that sleeps;
//   - one of them is private: by its owner;
//   - both are private: the sender copies pieces into a ring of shared memory, the receiver copies
//     them out. A block that goes to everybody is copied in once.
// What a rank gives is copied into the cell if it is short; then the rank need not wait until the
// others have read it.
//
// In a reducescatter each rank reduces its own block, piece by piece and in rank order, from where
// the others' inputs lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/exchange_area.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

// All kinds of a process set share one object, since its cells are used in the order of the
// batches.
class BlockExchange {
 public:
  // `group` must be available and outlive the object. `area`: area_bytes() of zeroed memory that
  // all ranks share, 64-byte aligned.
  BlockExchange(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int ranks);

  // Every rank starts the same collectives in the same order.
  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  static constexpr uint64_t kCells = 4;  // exchanges in flight

  struct Ring {
    std::shared_ptr<std::byte> memory;
    size_t bytes = 0;
  };
  Ring take_ring(size_t bytes);
  ExchangeCell cell(uint64_t number) const;

  core::LocalGroup& group_;
  const int rank_;
  const int ranks_;
  Waiters progress_;  // ranks that wait for the last to arrive, for a piece, or for the end
  Waiters reuse_;     // ranks that wait for a free cell
  std::byte* cells_;
  uint64_t next_ = 0;
  std::vector<Ring> rings_;  // free
};

}  // namespace horon::ops
