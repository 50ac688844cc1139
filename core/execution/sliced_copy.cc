#include "horon/core/execution/sliced_copy.h"

#include <algorithm>
#include <utility>

namespace horon::core {
namespace {

// A multiple of the size of every element.
constexpr size_t kGrain = 64;

size_t bytes_written(const CopyItem& item, size_t bytes_read) {
  switch (item.cast) {
    case CopyItem::Cast::Narrow:
      return bytes_read / 2;
    case CopyItem::Cast::Widen:
      return bytes_read * 2;
    case CopyItem::Cast::None:
      break;
  }
  return bytes_read;
}

// Takes the first `bytes` off an item.
CopyItem cut(CopyItem& item, size_t bytes) {
  CopyItem head = item;
  head.bytes = bytes;
  if (item.from != nullptr) item.from += bytes;
  item.to += bytes_written(item, bytes);
  item.bytes -= bytes;
  return head;
}

}  // namespace

SlicedCopy::SlicedCopy(MemoryQueue& queue, std::vector<CopyItem> items)
    : queue_(&queue), items_(std::move(items)) {}

std::vector<CopyItem> SlicedCopy::next_slice() {
  std::vector<CopyItem> slice;
  size_t room = kBytesPerStep;
  for (; next_ < items_.size(); ++next_) {
    CopyItem& item = items_[next_];
    if (item.bytes == 0) continue;
    if (item.bytes > room) {
      room -= room % kGrain;
      if (room > 0) slice.push_back(cut(item, room));
      break;
    }
    room -= item.bytes;
    slice.push_back(item);
  }
  return slice;
}

Progress SlicedCopy::step() {
  if (next_ == items_.size()) return Progress::Done;
  if (!queue_->immediate()) {
    queue_->copy(items_);
    next_ = items_.size();
    return Progress::Done;
  }
  const std::vector<CopyItem> slice = next_slice();
  if (slice.empty()) return Progress::Done;
  queue_->copy(slice);
  return Progress::Advanced;
}

}  // namespace horon::core
