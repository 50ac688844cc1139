// How a batch is cut that goes by way of scratch (chunked_batch.h). Pure functions of facts that
// all ranks share, so all cut alike.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/piece_sizes.h"

namespace horon::core {

struct ChunkPlan {
  // A chunk is a launch, a meeting of the ranks and a launch: these cost little beside so many
  // bytes, and a batch has several of them.
  static constexpr int64_t kBytes = 2 << 20;
  // Of chunks whose length is asked for.
  static constexpr int64_t kBytesLeast = 64 << 10;
  static constexpr int64_t kBytesMost = 8 << 20;
  // One is copied in, two are in the op, where the ranks meet for one of them while they reduce the
  // other, and one is copied back.
  static constexpr int64_t kAtOnce = 4;
  // Elements: chunks begin at cache lines, whatever the type is.
  static constexpr int64_t kAlignment = 64;

  int64_t elements = 0;  // of all chunks but the last
  int64_t chunks = 1;

  bool is_cut() const { return chunks > 1; }
  int64_t at_once() const { return chunks < kAtOnce ? chunks : kAtOnce; }
  int64_t count_of(int64_t chunk, int64_t count_of_batch) const {
    return chunk == chunks - 1 ? count_of_batch - chunk * elements : elements;
  }
};

// By its count, its type and Batch::piece_bytes, the length of a chunk that is asked for. Where
// there are not hundreds of chunks, none is much shorter than the others, as a rest would be.
ChunkPlan plan_chunks(const Batch& batch);
// Which Batch::piece_bytes change the plan of such a batch.
PieceSizes chunk_sizes(const Batch& like);

}  // namespace horon::core
