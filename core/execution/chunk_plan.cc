#include "horon/core/execution/chunk_plan.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "horon/core/base/error.h"
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

// The longest stretch per block with which all blocks together have at most `limit` elements.
int64_t longest_stretch(const BlockCounts& blocks, int64_t limit) {
  std::vector<int64_t> rising(blocks.begin(), blocks.end());
  std::sort(rising.begin(), rising.end());
  int64_t left = limit;
  for (size_t i = 0; i < rising.size(); ++i) {
    const auto longer = static_cast<int64_t>(rising.size() - i);
    if (rising[i] > left / longer) return left / longer;
    left -= rising[i];
  }
  return limit;
}

ChunkPlan plan_stretches(int64_t count, int64_t longest) {
  ChunkPlan plan;
  plan.elements = count;
  if (count <= longest) return plan;
  const int64_t chunks = (count + longest - 1) / longest;
  plan.elements = round_up((count + chunks - 1) / chunks, ChunkPlan::kAlignment);
  plan.chunks = (count + plan.elements - 1) / plan.elements;
  return plan;
}

}  // namespace

ChunkPlan plan_chunks(const Batch& batch) {
  return plan_stretches(batch.count, longest_chunk(batch.dtype, batch.piece_bytes));
}

ChunkPlan plan_chunks_of_blocks(DataType dtype, const BlockCounts& blocks) {
  HORON_CHECK(!blocks.empty(), "each member has a block");
  const auto element_bytes = static_cast<int64_t>(size_of(dtype));
  const int64_t longest = longest_stretch(blocks, ChunkPlan::kBytes / element_bytes);
  const int64_t least = ChunkPlan::kBytesOfBlockLeast / element_bytes;
  const ChunkPlan plan =
      plan_stretches(*std::max_element(blocks.begin(), blocks.end()),
                     std::max(longest / ChunkPlan::kAlignment * ChunkPlan::kAlignment, least));
  int64_t first = 0, all = 0;
  for (const int64_t block : blocks) {
    first += plan.stretch(0, block).count;
    all += block;
  }
  // If the first chunk had nearly everything, nothing would overlap with it.
  return 4 * first > 3 * all ? ChunkPlan{} : plan;
}

PieceSizes chunk_sizes(const Batch& like) {
  const auto bytes_of_chunk = [&](int64_t piece_bytes) {
    return longest_chunk(like.dtype, piece_bytes) * static_cast<int64_t>(size_of(like.dtype));
  };
  return {bytes_of_chunk(1), bytes_of_chunk(std::numeric_limits<int64_t>::max()),
          bytes_of_chunk(0)};
}

}  // namespace horon::core
