// The blocks of the other ranks of an exchange, as addresses in this process; but as addresses in
// their own process if only the kernel reaches them.
#pragma once

#include <cstddef>

#include "horon/core/host/local_group.h"
#include "horon/ops/host/block_transfer.h"
#include "horon/ops/host/exchange_area.h"

namespace horon::ops {

// Ask only about ranks that have arrived. The functions map memory, so they may throw as
// LocalGroup::map() does.
class ExchangePeers {
 public:
  ExchangePeers(core::LocalGroup& group, ExchangeCell cell, bool reduces)
      : group_(group), cell_(cell), rank_(group.local_rank()), reduces_(reduces) {}

  Way way(int from, int to) const {
    return way_between(cell_.member(from), cell_.member(to), reduces_);
  }
  bool kernel_reads(int from) const {
    return cell_.member(from).input_reached == Reached::ByKernel;
  }
  bool kernel_writes(int to) const { return cell_.member(to).output_reached == Reached::ByKernel; }
  // The block that `from` has for this rank; null if it comes by way of a ring.
  const std::byte* block_of(int from) const;
  // The sender's ring for this rank. Only once a piece is in it: then the sender has said where.
  std::byte* ring_of(int from) const;
  // Where the block of this rank belongs in the output of `to`.
  std::byte* place_in(int to) const;

 private:
  core::LocalGroup& group_;
  const ExchangeCell cell_;
  const int rank_;
  const bool reduces_;
};

}  // namespace horon::ops
