// Which rows of which tensor go to whom, for the collectives that move unlike blocks: allgather,
// gather, scatter, alltoall and reducescatter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/block_counts.h"

namespace horon::core {

// All numbers count elements. With several tensors (a group) the packed input holds the blocks for
// the first member, tensor by tensor, then those for the next member, and so on. The packed output
// is ordered likewise, by the member that the blocks come from.
struct BlockLayout {
  // [part][member that the block is for]; Allgather: one block, for all.
  std::vector<std::vector<int64_t>> in;
  // [part][member that the block comes from]; Reducescatter: one block, reduced over all.
  std::vector<std::vector<int64_t>> out;

  // [block]; sums over all parts.
  BlockCounts in_counts;
  BlockCounts out_counts;
  // Sums over all blocks.
  int64_t in_total = 0;
  int64_t out_total = 0;

  size_t block_count() const { return in.size() * (in_counts.size() + out_counts.size()); }
};

// `extents` as in StartEntry; `me`: this member's index; `ranks` of all members, to find the root.
BlockLayout make_block_layout(const EntrySpec& spec, std::span<const int64_t> extents, int me,
                              std::span<const int> ranks);

// True for the collectives that move rows (allgather, reducescatter, alltoall, gather, scatter):
// their input and output differ in size.
bool moves_blocks(CollectiveKind kind);

int64_t total(std::span<const int64_t> counts);

// The index of `rank` among the members; 0 if it is none.
int index_of(int rank, std::span<const int> ranks);

// Calls visit(part, first element, elements) for what the stretch [begin, end) of each packed block
// holds, in the order in which it lies there; `blocks`: as BlockLayout::in or out.
template <class Visit>
void for_each_block(const std::vector<std::vector<int64_t>>& blocks, int64_t begin, int64_t end,
                    const Visit& visit) {
  std::vector<int64_t> firsts(blocks.size());  // of the block, in each part
  for (size_t block = 0; block < blocks.front().size(); ++block) {
    int64_t place = 0;  // of the part, in the block
    for (size_t part = 0; part < blocks.size(); ++part) {
      const int64_t count = blocks[part][block];
      const int64_t from = std::max(place, begin);
      const int64_t to = std::min(place + count, end);
      if (from < to) visit(part, firsts[part] + from - place, to - from);
      place += count;
      firsts[part] += count;
    }
  }
}

}  // namespace horon::core
