#include "horon/ops/host/block_reduction.h"

#include <algorithm>

#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/ring_lines.h"

namespace horon::ops {

BlockReduction::BlockReduction(const ExchangePeers& peers, const ExchangeCell& cell,
                               const core::Batch& batch, const std::byte* own, int64_t bytes,
                               int rank, int ranks)
    : peers_(peers), batch_(batch), pieces_(Pieces::direct(bytes, ranks)) {
  bool any_ring = false;
  for (int from = 0; from < ranks && bytes > 0; ++from) {
    if (from == rank) {
      sources_.push_back({from, false, own, nullptr});
      continue;
    }
    const bool from_ring = peers.way(from, rank) == Way::Ring;
    any_ring = any_ring || from_ring;
    sources_.push_back({from, from_ring, peers.block_of(from), &cell.pair(from, rank)});
  }
  if (any_ring) pieces_ = Pieces::in_ring(bytes, ring_piece_bytes(ranks, false));
  inputs_.resize(sources_.size());
}

bool BlockReduction::ready() const {
  return !complete() && std::all_of(sources_.begin(), sources_.end(), [this](const Source& source) {
    return !source.from_ring || source.pair->staged.load(std::memory_order_seq_cst) > next_;
  });
}

int64_t BlockReduction::reduce_piece() {
  if (!ready()) return 0;
  const int64_t begin = pieces_.begin(next_);
  const int64_t bytes = pieces_.bytes(next_);
  for (size_t rank = 0; rank < sources_.size(); ++rank) {
    Source& source = sources_[rank];
    if (source.from_ring && source.ring == nullptr) source.ring = peers_.ring_of(source.rank);
    inputs_[rank] =
        source.from_ring ? source.ring + pieces_.ring_place(next_) : source.block + begin;
  }
  std::byte* const output = batch_.output + begin;
  reduce_many({batch_.dtype, batch_.reduce_op, batch_.prescale, batch_.postscale, batch_.divisor},
              inputs_, {&output, 1}, bytes / static_cast<int64_t>(size_of(batch_.dtype)));
  for (const Source& source : sources_) {
    if (source.from_ring) take_lines(source.ring + pieces_.ring_place(next_), bytes);
  }
  ++next_;
  for (const Source& source : sources_) {
    if (source.from_ring) source.pair->done.store(next_, std::memory_order_seq_cst);
  }
  return bytes * static_cast<int64_t>(sources_.size());
}

}  // namespace horon::ops
