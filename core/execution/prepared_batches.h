// What stays the same each time that one entry runs alone: its op, how many elements of which type,
// and which rows go to whom.
//
// A training step brings the same buckets again and again. Their layout and their op are found
// once; after that a batch only takes its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/op_table.h"

namespace horon::core {

struct PreparedBatch {
  // Kept, so that no other spec can get its address.
  std::shared_ptr<const EntrySpec> spec;
  int contributors = 0;
  std::vector<int64_t> extents;  // as in EntryWork
  Batch batch;                   // all but its sequence and memory
  CollectiveOp* op = nullptr;
  std::shared_ptr<const BlockLayout> blocks;  // moves_blocks(), else null
};

// Which op runs such a batch, of `facts_count` elements by BatchFacts. Throws Error(Config).
CollectiveOp& op_for(const OpTable& ops, const Batch& batch, int64_t facts_count);

// By the address of the spec: programs that call a collective again give the same one. One thread
// at a time.
class PreparedBatches {
 public:
  // Null if this spec has not been prepared, or for another number of contributors or other rows.
  const PreparedBatch* find(const EntrySpec* spec, int contributors,
                            std::span<const int64_t> extents) const;
  void add(PreparedBatch prepared);

 private:
  // A program that makes a new spec for each call never hits: the map is cleared when it is full.
  static constexpr size_t kKept = 1024;
  // A layout of more blocks than this is not kept: it takes much memory, and the collective takes
  // far longer than making it.
  static constexpr size_t kKeptBlocksMax = 4096;
  std::unordered_map<const EntrySpec*, PreparedBatch> by_spec_;
};

}  // namespace horon::core
