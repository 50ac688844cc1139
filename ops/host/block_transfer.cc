#include "horon/ops/host/block_transfer.h"

#include <algorithm>

namespace horon::ops {
namespace {

constexpr int64_t kBlockPieceBytesMin = 32 << 10;
constexpr int64_t kBlockPieceBytesMax = 256 << 10;
// A reduced piece touches the memory of all ranks.
constexpr int64_t kReducedBytesMax = 2 << 20;

}  // namespace

Pieces::Pieces(int64_t block_bytes, int ranks, bool in_ring) : total(block_bytes) {
  const int64_t longest =
      in_ring ? kRingPieceBytes
              : std::clamp(kReducedBytesMax / ranks, kBlockPieceBytesMin, kBlockPieceBytesMax);
  each = std::clamp(block_bytes / 4, kBlockPieceBytesMin, longest) / 64 * 64;
  count = static_cast<uint64_t>((block_bytes + each - 1) / each);
}

int64_t Pieces::bytes(uint64_t piece) const { return std::min(each, total - begin(piece)); }

Way way_between(const ExchangeMember& from, const ExchangeMember& to, bool reduces) {
  const bool pushable = to.output_shared && !reduces;
  switch (from.gives) {
    case Gives::Payload:
      return Way::Pull;
    case Gives::Shared:
      return pushable ? Way::Together : Way::Pull;
    case Gives::Private:
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
