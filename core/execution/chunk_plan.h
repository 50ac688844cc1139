// How a batch is cut that goes by way of scratch (chunked_batch.h). Pure functions of facts that
// all ranks share, so all cut alike.
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
  // A chunk is a launch, a meeting of the ranks and a launch: these cost little beside so many
  // bytes, and a batch has several of them.
  static constexpr int64_t kBytes = 2 << 20;
  // Of chunks whose length is asked for.
  static constexpr int64_t kBytesLeast = 64 << 10;
  static constexpr int64_t kBytesMost = 8 << 20;
  // Of what a chunk has of the longest block: each two ranks, or hosts, exchange one message of it.
  static constexpr int64_t kBytesOfBlockLeast = 256 << 10;
  // One is copied in, two are in the op, where the ranks meet for one of them while they reduce the
  // other, and one is copied back.
  static constexpr int64_t kAtOnce = 4;
  // Elements: chunks begin at cache lines, whatever the type is.
  static constexpr int64_t kAlignment = 64;

  int64_t elements = 0;  // of all chunks but the last, or of each block in them
  int64_t chunks = 1;

  bool is_cut() const { return chunks > 1; }
  int64_t at_once() const { return chunks < kAtOnce ? chunks : kAtOnce; }
  // Of `count` elements, those of the batch or of one of its blocks. A block that is shorter than
  // others has nothing in the last chunks.
  BatchStretch stretch(int64_t chunk, int64_t count) const {
    const int64_t begin = std::min(chunk * elements, count);
    return {begin, std::min(elements, count - begin)};
  }
};

// By its count, its type and Batch::piece_bytes, the length of a chunk that is asked for. Where
// there are not hundreds of chunks, none is much shorter than the others, as a rest would be.
ChunkPlan plan_chunks(const Batch& batch);
// Of a batch that moves blocks of so many elements, one for each member: a chunk has a stretch of
// each of them. All stretches together are at most kBytes long, unless each would be shorter than
// kBytesOfBlockLeast. It is not cut where the first chunk would have nearly everything.
ChunkPlan plan_chunks_of_blocks(DataType dtype, const BlockCounts& blocks);
// Which Batch::piece_bytes change the plan of such a batch.
PieceSizes chunk_sizes(const Batch& like);

}  // namespace horon::core
