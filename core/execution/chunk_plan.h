// How a batch that goes by way of scratch (chunked_batch.h) is cut into chunks. Pure functions of
// facts that all ranks share, so all cut alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "horon/core/execution/block_counts.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/piece_sizes.h"

namespace horon::core {

// Elements of a batch, or of each of its blocks.
struct BatchStretch {
  int64_t begin = 0;
  int64_t count = 0;
};

struct ChunkPlan {
  // The usual length of a chunk. A chunk costs two launches and a meeting of the ranks: little
  // beside so many bytes, and a long batch still has several chunks.
  static constexpr int64_t kBytes = 2 << 20;
  // Limits for a length that is asked for (Batch::piece_bytes).
  static constexpr int64_t kBytesLeast = 64 << 10;
  static constexpr int64_t kBytesMost = 8 << 20;
  // The least that a chunk has of the longest block, which each pair of ranks or hosts exchanges as
  // one message.
  static constexpr int64_t kBytesOfBlockLeast = 256 << 10;
  // How many chunks are under way: one is copied in, two are in the op (the ranks meet for one
  // while they reduce the other), and one is copied back.
  static constexpr int64_t kAtOnce = 4;
  // In elements, so that chunks begin at cache lines whatever the type is.
  static constexpr int64_t kAlignment = 64;

  int64_t elements = 0;  // of all chunks but the last, or of each block in them
  int64_t chunks = 1;

  bool is_cut() const { return chunks > 1; }
  int64_t at_once() const { return chunks < kAtOnce ? chunks : kAtOnce; }
  // The stretch that a chunk has of `count` elements: those of the batch, or of one of its blocks.
  // A block that is shorter than the others has nothing in the last chunks.
  BatchStretch stretch(int64_t chunk, int64_t count) const {
    const int64_t begin = std::min(chunk * elements, count);
    return {begin, std::min(elements, count - begin)};
  }
};

// Depends on the batch's count, type and piece_bytes (the length of a chunk that is asked for).
// Unless there are hundreds of chunks, all are nearly equally long: there is no short rest.
ChunkPlan plan_chunks(const Batch& batch);
// For a batch that moves blocks of so many elements, one for each member: a chunk has a stretch of
// every block. All stretches together are at most kBytes long, unless each would be shorter than
// kBytesOfBlockLeast. It is not cut where the first chunk would have nearly everything.
ChunkPlan plan_chunks_of_blocks(DataType dtype, const BlockCounts& blocks);
// The range of Batch::piece_bytes that changes the plan of such a batch.
PieceSizes chunk_sizes(const Batch& like);

}  // namespace horon::core
