// What is copied between the tensors of a batch and the memory of its op, all of it or a stretch:
// packing and unpacking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/chunk_plan.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/memory_queue.h"

namespace horon::core {

// For the collectives whose result is laid out as their input: all but Barrier and those that move
// blocks.
class BatchCopies {
 public:
  // `entries` and `batch` outlive this and do not change. `is_source`: this rank is the root of a
  // broadcast.
  BatchCopies(const std::vector<EntryWork>& entries, const Batch& batch, bool is_source)
      : entries_(entries), batch_(batch), is_source_(is_source) {}

  // `memory`: where the stretch begins in the op's memory.
  std::vector<CopyItem> in(std::byte* memory, const BatchStretch& stretch) const;
  std::vector<CopyItem> out(const std::byte* memory, const BatchStretch& stretch) const;

 private:
  template <class Visit>
  void for_each_part(const BatchStretch& stretch, const Visit& visit) const;
  const EntrySpec& spec() const { return *entries_.front().spec; }
  size_t bytes_of(int64_t elements) const;
  size_t bytes_of_tensor(int64_t elements) const;

  const std::vector<EntryWork>& entries_;
  const Batch& batch_;
  const bool is_source_;
};

// For the collectives that move blocks: copies between the parts of a group and the packed blocks,
// or the packed stretches of all blocks.
inline constexpr BatchStretch kAllOfBlocks = {0, std::numeric_limits<int64_t>::max()};
std::vector<CopyItem> copies_of_blocks_in(const EntryWork& entry, const BlockLayout& blocks,
                                          DataType dtype, std::byte* to,
                                          const BatchStretch& of_each = kAllOfBlocks);
std::vector<CopyItem> copies_of_blocks_out(const EntryWork& entry, const BlockLayout& blocks,
                                           DataType dtype, const std::byte* from,
                                           const BatchStretch& of_each = kAllOfBlocks);

}  // namespace horon::core
