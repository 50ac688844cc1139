#include "horon/core/execution/scratch_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {

ScratchPool::ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains)
    : domains_(std::move(domains)) {}

MemoryDomain& ScratchPool::domain(DeviceKind device) {
  for (const auto& domain : domains_) {
    if (domain->device() == device) return *domain;
  }
  throw Error(ErrorCode::Config,
              concat("this build has no support for ", to_string(device), " memory"));
}

ScratchPool::Buffer ScratchPool::take(DeviceKind device, size_t bytes) {
  auto& free = free_[static_cast<size_t>(device)];
  const auto fits = std::find_if(free.begin(), free.end(),
                                 [&](const Buffer& buffer) { return buffer.capacity >= bytes; });
  if (fits == free.end()) {
    const size_t capacity = std::bit_ceil(std::max(bytes, kSmallest));
    return {domain(device).allocate(capacity), capacity};
  }
  Buffer buffer = std::move(*fits);
  free.erase(fits);
  return buffer;
}

void ScratchPool::give_back(DeviceKind device, Buffer buffer) {
  auto& free = free_[static_cast<size_t>(device)];
  free.push_back(std::move(buffer));
  if (free.size() > kKept) free.erase(free.begin());
}

}  // namespace horon::core
