#include "horon/ops/host/host_memory.h"

#include <cstdlib>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/neutral.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {

std::shared_ptr<std::byte> HostMemory::allocate(size_t bytes) {
  if (bytes == 0) return nullptr;
  if (group_ != nullptr) return group_->allocate_scratch(bytes);
  constexpr size_t kAlignment = 64;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) {
    throw Error(ErrorCode::Limit, core::concat("no memory for ", core::bytes_text(bytes)));
  }
  return {static_cast<std::byte*>(memory), [](std::byte* data) { std::free(data); }};
}

void HostQueue::copy(std::span<const core::CopyItem> items) {
  for (const core::CopyItem& item : items) {
    if (item.bytes == 0) continue;
    if (item.from == nullptr) {
      core::fill({item.to, item.bytes}, item.pattern);
      continue;
    }
    const DataType type = core::narrow_type(item.type);
    switch (item.cast) {
      case core::CopyItem::Cast::None:
        core::copy_bytes(item.to, item.from, item.bytes);
        break;
      case core::CopyItem::Cast::Narrow:
        narrow(type, reinterpret_cast<const float*>(item.from), item.to,
               static_cast<int64_t>(item.bytes / sizeof(float)), item.factor);
        break;
      case core::CopyItem::Cast::Widen:
        widen(type, item.from, reinterpret_cast<float*>(item.to),
              static_cast<int64_t>(item.bytes / size_of(type)), item.factor);
        break;
    }
  }
}

}  // namespace horon::ops
