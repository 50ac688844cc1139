#include "horon/ops/host/block_transfer.h"

#include <algorithm>

namespace horon::ops {
namespace {

constexpr int64_t kBlockPieceBytesMin = 32 << 10;
constexpr int64_t kBlockPieceBytesMax = 256 << 10;
// A reduced piece touches the memory of all ranks.
constexpr int64_t kReducedBytesMax = 2 << 20;
constexpr int64_t kRingPieceBytesMin = 1 << 10;
constexpr int64_t kRingPieceBytesMax = 64 << 10;
// With several readers a ring holds more at a time: where ranks share cores, more data then moves
// with each switch between ranks.
constexpr int64_t kSharedRingPieceBytesMax = 256 << 10;

Pieces cut(int64_t block_bytes, int64_t shortest, int64_t longest) {
  const int64_t each = std::clamp(block_bytes / 4, shortest, longest) / 64 * 64;
  return {block_bytes, each, static_cast<uint64_t>((block_bytes + each - 1) / each)};
}

}  // namespace

int64_t ring_piece_bytes(int ranks, bool one_for_all) {
  const int64_t rings = ranks * (one_for_all ? 1 : std::max<int64_t>(1, ranks - 1));
  const int64_t share = kAllRingsBytes / (rings * static_cast<int64_t>(kRingPieces));
  const bool several_readers = one_for_all && ranks > 2;
  const int64_t longest = several_readers ? kSharedRingPieceBytesMax : kRingPieceBytesMax;
  return std::clamp(share, kRingPieceBytesMin, longest) / 64 * 64;
}

Pieces Pieces::direct(int64_t block_bytes, int ranks) {
  return cut(block_bytes, kBlockPieceBytesMin,
             std::clamp(kReducedBytesMax / ranks, kBlockPieceBytesMin, kBlockPieceBytesMax));
}

Pieces Pieces::in_ring(int64_t block_bytes, int64_t ring_piece_bytes) {
  return cut(block_bytes, std::min(kBlockPieceBytesMin, ring_piece_bytes), ring_piece_bytes);
}

int64_t Pieces::bytes(uint64_t piece) const { return std::min(each, total - begin(piece)); }

Way way_between(const ExchangeMember& from, const ExchangeMember& to, bool reduces) {
  const bool pushable = to.output_reached != Reached::ByNobody && !reduces;
  switch (from.input_reached) {
    case Reached::InCell:
      return Way::Pull;
    case Reached::Mapped:
    case Reached::ByKernel:
      return pushable ? Way::Together : Way::Pull;
    case Reached::ByNobody:
      break;
  }
  return pushable ? Way::Push : Way::Ring;
}

bool BlockTransfer::exhausted() const {
  return (way == Way::Together ? pair->claimed.load(std::memory_order_relaxed) : next) >=
         pieces.count;
}

bool BlockTransfer::take(uint64_t& piece) {
  if (exhausted()) return false;
  if (way == Way::Together) {
    piece = pair->claimed.fetch_add(1, std::memory_order_relaxed);
    return piece < pieces.count;
  }
  if (way == Way::Ring && pair->staged.load(std::memory_order_seq_cst) <= next) return false;
  piece = next++;
  return true;
}

bool BlockTransfer::note_copied() {
  if (way == Way::Together || way == Way::Ring) {
    return pair->done.fetch_add(1, std::memory_order_seq_cst) + 1 == pieces.count;
  }
  return next == pieces.count;
}

bool RingFeed::has_room() const {
  return next < pieces.count &&
         std::all_of(readers.begin(), readers.end(), [this](const Reader& reader) {
           return reader.pair->done.load(std::memory_order_seq_cst) + kRingPieces > next;
         });
}

}  // namespace horon::ops
