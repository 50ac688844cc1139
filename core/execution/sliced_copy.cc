#include "horon/core/execution/sliced_copy.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/keep_for_ever.h"

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
  item.from += bytes;
  item.to += bytes_written(item, bytes);
  item.bytes -= bytes;
  return head;
}

}  // namespace

SlicedCopy::SlicedCopy(MemoryDomain& domain, std::vector<CopyItem> items)
    : domain_(&domain), items_(std::move(items)) {}

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
  if (next_ < items_.size()) {
    const std::vector<CopyItem> slice = next_slice();
    if (!slice.empty()) {
      if (auto copy = domain_->copy(slice)) pending_.push_back(std::move(copy));
      return Progress::Advanced;
    }
  }
  std::erase_if(pending_, [](const auto& copy) { return copy->done(); });
  return pending_.empty() ? Progress::Done : Progress::Polling;
}

void SlicedCopy::keep_pending() {
  for (auto& copy : pending_) keep_for_ever(std::shared_ptr<PendingCopy>(std::move(copy)));
  pending_.clear();
}

}  // namespace horon::core
