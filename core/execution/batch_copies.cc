#include "horon/core/execution/batch_copies.h"

#include <algorithm>

#include "horon/core/base/narrow_type.h"
#include "horon/core/execution/neutral.h"

namespace horon::core {

size_t BatchCopies::bytes_of(int64_t elements) const {
  return static_cast<size_t>(elements) * size_of(batch_.dtype);
}

size_t BatchCopies::bytes_of_tensor(int64_t elements) const {
  return static_cast<size_t>(elements) * size_of(spec().dtype);
}

// Calls visit(entry, part, begin, count, at) for what this rank's memory has of the stretch.
// `begin`: the first element, within the part; `at`: the same element, within the stretch.
template <class Visit>
void BatchCopies::for_each_part(const BatchStretch& stretch, const Visit& visit) const {
  const int64_t end = stretch.begin + stretch.count;
  int64_t place = 0;  // of the part in the batch
  for (const EntryWork& entry : entries_) {
    if (place >= end) return;
    if (!entry.mine) {
      place += element_count(*entry.spec);
      continue;
    }
    for (const MemoryPart& part : entry.memory) {
      const int64_t from = std::max(place, stretch.begin);
      const int64_t to = std::min(place + part.count, end);
      if (from < to) visit(entry, part, from - place, to - from, from - stretch.begin);
      place += part.count;
    }
  }
}

std::vector<CopyItem> BatchCopies::in(std::byte* memory, const BatchStretch& stretch) const {
  std::vector<CopyItem> items;
  if (spec().kind == CollectiveKind::Broadcast && !is_source_) return items;  // it is overwritten
  if (!entries_.front().mine) {  // joined: the same for every entry of the batch
    CopyItem& fill = items.emplace_back();
    fill.to = memory;
    fill.bytes = bytes_of(stretch.count);
    fill.pattern = neutral_pattern(batch_.dtype, batch_.reduce_op);
  }
  for_each_part(stretch, [&](const EntryWork& entry, const MemoryPart& part, int64_t begin,
                             int64_t count, int64_t at) {
    CopyItem& item = items.emplace_back();
    item.to = memory + bytes_of(at);
    if (!is_16_bit(spec().compression) || entry.narrowed) {
      item.from = part.input + bytes_of(begin);
      item.bytes = bytes_of(count);
      return;
    }
    item.from = part.input + bytes_of_tensor(begin);
    item.bytes = bytes_of_tensor(count);
    item.cast = CopyItem::Cast::Narrow;
    item.type = spec().compression;
    item.factor = spec().prescale;
  });
  return items;
}

std::vector<CopyItem> BatchCopies::out(const std::byte* memory, const BatchStretch& stretch) const {
  std::vector<CopyItem> items;
  for_each_part(stretch, [&](const EntryWork&, const MemoryPart& part, int64_t begin, int64_t count,
                             int64_t at) {
    // In place the result is there already, and the program may be reading what it sends.
    if (is_source_ && part.input == part.output) return;
    CopyItem& item = items.emplace_back();
    item.from = memory + bytes_of(at);
    item.to = part.output + bytes_of_tensor(begin);
    item.bytes = bytes_of(count);
    if (!is_16_bit(spec().compression)) return;
    item.cast = CopyItem::Cast::Widen;
    item.type = spec().compression;
    item.factor = spec().postscale;
  });
  return items;
}

std::vector<CopyItem> copies_of_blocks_in(const EntryWork& entry, const BlockLayout& blocks,
                                          DataType dtype, std::byte* to,
                                          const BatchStretch& of_each) {
  std::vector<CopyItem> items;
  const size_t size = size_of(dtype);
  const auto add = [&](size_t part, int64_t begin, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * size;
    items.push_back({entry.memory[part].input + static_cast<size_t>(begin) * size, to, bytes});
    to += bytes;
  };
  for_each_block(blocks.in, of_each.begin, of_each.begin + of_each.count, add);
  return items;
}

std::vector<CopyItem> copies_of_blocks_out(const EntryWork& entry, const BlockLayout& blocks,
                                           DataType dtype, const std::byte* from,
                                           const BatchStretch& of_each) {
  std::vector<CopyItem> items;
  const size_t size = size_of(dtype);
  const auto add = [&](size_t part, int64_t begin, int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * size;
    items.push_back({from, entry.memory[part].output + static_cast<size_t>(begin) * size, bytes});
    from += bytes;
  };
  for_each_block(blocks.out, of_each.begin, of_each.begin + of_each.count, add);
  return items;
}

}  // namespace horon::core
