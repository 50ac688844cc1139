// The block of one rank in a reducescatter: reduced by that rank, piece by piece and in rank order,
// from where the inputs of all ranks lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/host/exchange_peers.h"

namespace horon::ops {

class BlockReduction {
 public:
  // `own`: this rank's input for its own block, of `bytes` bytes. The batch must outlive the
  // object.
  BlockReduction(const ExchangePeers& peers, const ExchangeCell& cell, const core::Batch& batch,
                 const std::byte* own, int64_t bytes, int rank, int ranks);

  // Reduces the next piece, if all ranks' inputs for it are there; returns the bytes read, or 0.
  int64_t reduce_piece();
  bool complete() const { return next_ == pieces_.count; }

  // Calls visit(rank) for each other rank that waits for room in its ring after a piece.
  template <class Visit>
  void for_each_ring(const Visit& visit) const {
    for (const Source& source : sources_) {
      if (source.from_ring) visit(source.rank);
    }
  }

 private:
  struct Source {
    int rank;
    bool from_ring;
    const std::byte* block;     // null if it comes from a ring
    ExchangePair* pair;         // null: this rank itself
    std::byte* ring = nullptr;  // known when a piece is in it
  };
  bool ready() const;

  const ExchangePeers& peers_;
  const core::Batch& batch_;
  std::vector<Source> sources_;  // [rank]
  Pieces pieces_;
  std::vector<const std::byte*> inputs_;  // [rank], of one piece
  uint64_t next_ = 0;
};

}  // namespace horon::ops
