// One block on its way from one rank to another, piece by piece, as one of the two ranks sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "horon/ops/host/exchange_area.h"

namespace horon::ops {

// Pieces of one block that are in a ring at a time.
inline constexpr uint64_t kRingPieces = 4;
// Limit for all rings of one collective on a host, unless a piece would be shorter than 1 KiB.
inline constexpr int64_t kAllRingsBytes = int64_t{64} << 20;

// The longest piece in a ring; a multiple of 64. A rank has one ring if it gives everybody the same
// block, else one for each other rank, so with many ranks the rings get shorter.
int64_t ring_piece_bytes(int ranks, bool one_for_all);

// How a block is cut; both ranks know all of this.
struct Pieces {
  // Copied from memory to memory, or reduced from the memory of all ranks.
  static Pieces direct(int64_t block_bytes, int ranks);
  // By way of a ring for pieces of that length.
  static Pieces in_ring(int64_t block_bytes, int64_t ring_piece_bytes);
  int64_t begin(uint64_t piece) const { return static_cast<int64_t>(piece) * each; }
  int64_t bytes(uint64_t piece) const;
  // Where a piece lies in the part of a ring that belongs to the block.
  int64_t ring_place(uint64_t piece) const {
    return static_cast<int64_t>(piece % kRingPieces) * each;
  }

  int64_t total;  // bytes
  int64_t each;   // bytes; a multiple of 64
  uint64_t count;
};

// Who copies. The other rank's memory is mapped, or the kernel copies (Reached).
enum class Way : uint8_t {
  Together,  // sender and receiver
  Pull,      // the receiver
  Push,      // the sender
  Ring,      // the sender copies in, the receiver out
};

// Both ranks get the same answer. `reduces`: the receiver itself reduces what it gets.
Way way_between(const ExchangeMember& from, const ExchangeMember& to, bool reduces);

// A block that this rank copies, alone or with the other rank, or copies out of the other's ring.
struct BlockTransfer {
  int from_rank;
  int to_rank;
  Way way;
  ExchangePair* pair;
  // Source and destination; `from` is null if the block comes by way of a ring. If `kernel_copies`,
  // the other rank's one is an address in its process.
  const std::byte* from;
  std::byte* to;
  bool kernel_copies;
  Pieces pieces;
  uint64_t next = 0;          // not used if Together
  std::byte* ring = nullptr;  // of the sender; known when a piece is in it

  bool exhausted() const;
  // Claims a piece that can be copied now; false if there is none.
  bool take(uint64_t& piece);
  // Notes that the piece is copied; true if the block is complete with it.
  bool note_copied();
};

// A block that this rank copies into its ring, for one rank or for several.
struct RingFeed {
  struct Reader {
    int rank;
    ExchangePair* pair;
  };
  std::vector<Reader> readers;
  const std::byte* from;
  std::byte* ring;
  Pieces pieces;
  uint64_t next = 0;

  // Whether the next piece can be copied in.
  bool has_room() const;
};

}  // namespace horon::ops
