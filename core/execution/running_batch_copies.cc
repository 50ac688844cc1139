// What a batch copies into the memory of its op, and back.
#include <utility>

#include "horon/core/execution/neutral.h"
#include "horon/core/execution/running_batch.h"

namespace horon::core {

// Calls visit(entry, part, address) for all memory of this rank. `address`: of the part in the op's
// memory.
template <class Visit>
void RunningBatch::for_each_part(const Visit& visit) {
  std::byte* address = batch_.output;
  for (const EntryWork& entry : work_.entries) {
    if (!entry.mine) {
      address += bytes_of(element_count(*entry.spec));
      continue;
    }
    for (const MemoryPart& part : entry.memory) {
      visit(entry, part, address);
      address += bytes_of(part.count);
    }
  }
}

SlicedCopy RunningBatch::copy_blocks(bool in) {
  std::vector<CopyItem> items;
  const std::vector<MemoryPart>& memory = work_.entries.front().memory;
  const std::byte* from = batch_.output;
  auto* to = const_cast<std::byte*>(batch_.input);
  for_each_block(in ? blocks_->in : blocks_->out, [&](size_t part, int64_t begin, int64_t count) {
    const size_t bytes = bytes_of(count);
    if (in) {
      items.push_back({memory[part].input + bytes_of(begin), to, bytes});
      to += bytes;
    } else if (count > 0) {
      items.push_back({from, memory[part].output + bytes_of(begin), bytes});
      from += bytes;
    }
  });
  return {*queue_, std::move(items)};
}

SlicedCopy RunningBatch::pack() {
  if (!scratch_bytes_) return {};
  if (moves_blocks(spec_.kind)) return packs_blocks_ ? copy_blocks(true) : SlicedCopy();
  if (spec_.kind == CollectiveKind::Broadcast && !is_source()) return {};  // all is overwritten
  std::vector<CopyItem> items;
  if (!work_.entries.front().mine) {  // joined: the same for every entry of the batch
    CopyItem& fill = items.emplace_back();
    fill.to = scratch_.memory.get();
    fill.bytes = bytes_of(batch_.count);
    fill.pattern = neutral_pattern(batch_.dtype, batch_.reduce_op);
  }
  for_each_part([&](const EntryWork& entry, const MemoryPart& part, std::byte* address) {
    CopyItem& item = items.emplace_back();
    item.from = part.input;
    item.to = address;
    item.bytes = bytes_of(part.count);
    if (!in_16_bits() || entry.narrowed) return;
    item.bytes = static_cast<size_t>(part.count) * size_of(spec_.dtype);
    item.cast = CopyItem::Cast::Narrow;
    item.type = spec_.compression;
    item.factor = spec_.prescale;
  });
  return {*queue_, std::move(items)};
}

SlicedCopy RunningBatch::unpack() {
  if (!scratch_bytes_ && !in_16_bits()) return {};
  if (moves_blocks(spec_.kind)) {
    return packs_blocks_ && !work_.entries.front().error ? copy_blocks(false) : SlicedCopy();
  }
  std::vector<CopyItem> items;
  for_each_part([&](const EntryWork&, const MemoryPart& part, const std::byte* address) {
    // In place it is there already, and the program may read meanwhile what it sends.
    if (is_source() && part.input == part.output) return;
    CopyItem& item = items.emplace_back();
    item.from = address;
    item.to = part.output;
    item.bytes = bytes_of(part.count);
    if (!in_16_bits()) return;
    item.cast = CopyItem::Cast::Widen;
    item.type = spec_.compression;
    item.factor = spec_.postscale;
  });
  return {*queue_, std::move(items)};
}

}  // namespace horon::core
