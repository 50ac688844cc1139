#include "horon/core/execution/prepared_batches.h"

#include <algorithm>
#include <utility>

namespace horon::core {

CollectiveOp& op_for(const OpTable& ops, const Batch& batch, int64_t facts_count) {
  BatchFacts facts;
  facts.kind = batch.kind;
  facts.dtype = batch.dtype;
  facts.reduce_op = batch.reduce_op;
  facts.device = batch.device;
  facts.count = facts_count;
  facts.captured = batch.captured;
  return ops.select(facts);
}

const PreparedBatch* PreparedBatches::find(const EntrySpec* spec, int contributors,
                                           std::span<const int64_t> extents) const {
  const auto known = by_spec_.find(spec);
  if (known == by_spec_.end()) return nullptr;
  const PreparedBatch& prepared = known->second;
  const bool fits =
      prepared.contributors == contributors && std::ranges::equal(prepared.extents, extents);
  return fits ? &prepared : nullptr;
}

void PreparedBatches::add(PreparedBatch prepared) {
  if (prepared.blocks != nullptr && prepared.blocks->block_count() > kKeptBlocksMax) return;
  if (by_spec_.size() >= kKept) by_spec_.clear();
  const EntrySpec* const spec = prepared.spec.get();
  by_spec_[spec] = std::move(prepared);
}

}  // namespace horon::core
