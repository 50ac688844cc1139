// Broadcast, allgather, alltoall, gather, scatter and reducescatter among the ranks of one host:
// each rank has a block for some of the others.
//
// Every rank publishes where its input and its output lie. When all have done so, each block is
// copied from the input of its sender into the output of its receiver. If there is a root, the
// others begin when the root has published, since each exchanges with it alone; the root waits for
// all. Who copies depends on which of the two memories the other rank can reach. Shared memory is
// mapped. Private memory is copied by the kernel where that is allowed (core/host/process_memory.h)
// and faster; but not for ranks whose blocks are all short, not where several ranks want the same
// data, and not for sums. Output blocks that lie apart are not mapped: the kernel writes each at
// its address.
//   - Both: the two ranks claim pieces of the block and copy them. The rank that has less to do
//     helps the other, and none waits for one that sleeps.
//   - One can't be reached: its owner copies the block.
//   - Neither can: the sender copies pieces into a ring of shared memory, and the receiver
//     copies them out. A block for all ranks is copied into the ring once.
// A short input is copied into the cell, so that its rank need not wait until the others have read
// it.
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
#include "horon/ops/host/ring_feeds.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

// All kinds of a process set share one object, since its cells are used in the order of the
// batches.
class BlockExchange {
 public:
  // `group` must be available and outlive the object. `area`: area_bytes() of zeroed memory that
  // all ranks share, 64-byte aligned. `by_kernel`: see offer_memory() (exchange_offer.h).
  BlockExchange(core::LocalGroup& group, std::byte* area, bool by_kernel);
  static size_t area_bytes(int ranks);

  // Every rank starts the same collectives in the same order.
  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  static constexpr uint64_t kCells = 4;  // exchanges in flight

  ExchangeCell cell(uint64_t number) const;

  core::LocalGroup& group_;
  const int rank_;
  const int ranks_;
  Waiters progress_;  // ranks that wait for others to arrive, for a piece, or for the end
  Waiters reuse_;     // ranks that wait for a free cell
  std::byte* cells_;
  const bool by_kernel_;
  uint64_t next_ = 0;
  RingPool rings_;
};

}  // namespace horon::ops
