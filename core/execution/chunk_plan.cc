#include "horon/core/execution/chunk_plan.h"

#include <algorithm>
#include <limits>

#include "horon/core/base/round_up.h"

namespace horon::core {
namespace {

int64_t longest_chunk(DataType dtype, int64_t piece_bytes) {
  const int64_t bytes =
      piece_bytes == 0 ? ChunkPlan::kBytes
                       : std::clamp(piece_bytes, ChunkPlan::kBytesLeast, ChunkPlan::kBytesMost);
  const int64_t elements = bytes / static_cast<int64_t>(size_of(dtype));
  return elements / ChunkPlan::kAlignment * ChunkPlan::kAlignment;
}

}  // namespace

ChunkPlan plan_chunks(const Batch& batch) {
  const int64_t longest = longest_chunk(batch.dtype, batch.piece_bytes);
  ChunkPlan plan;
  plan.elements = batch.count;
  if (batch.count <= longest) return plan;
  const int64_t chunks = (batch.count + longest - 1) / longest;
  plan.elements = round_up((batch.count + chunks - 1) / chunks, ChunkPlan::kAlignment);
  plan.chunks = (batch.count + plan.elements - 1) / plan.elements;
  return plan;
}

PieceSizes chunk_sizes(const Batch& like) {
  const auto bytes_of_chunk = [&](int64_t piece_bytes) {
    return longest_chunk(like.dtype, piece_bytes) * static_cast<int64_t>(size_of(like.dtype));
  };
  return {bytes_of_chunk(1), bytes_of_chunk(std::numeric_limits<int64_t>::max()),
          bytes_of_chunk(0)};
}

}  // namespace horon::core
