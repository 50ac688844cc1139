#include "horon/core/execution/scratch_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

bool in_use(const ScratchPool::Buffer& buffer) {
  return buffer.last_used != nullptr && !buffer.last_used->happened();
}

}  // namespace

ScratchPool::ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains, size_t bytes_max)
    : domains_(std::move(domains)), bytes_max_(bytes_max) {}

ScratchPool::~ScratchPool() {
  for (OfDevice& device : devices_) keep_what_is_used(device.free);
  keep_what_is_used(too_many_);
}

void ScratchPool::keep_what_is_used(std::vector<Buffer>& buffers) noexcept {
  for (Buffer& buffer : buffers) {
    try {
      if (!in_use(buffer)) continue;
    } catch (...) {  // the device has failed: nobody knows what it still writes
    }
    keep_for_ever(std::move(buffer.memory));
  }
}

MemoryDomain& ScratchPool::domain(DeviceKind device) {
  for (const auto& domain : domains_) {
    if (domain->device() == device) return *domain;
  }
  throw Error(ErrorCode::Config,
              concat("this build has no support for ", to_string(device), " memory"));
}

bool ScratchPool::has_room(DeviceKind device, size_t bytes) const {
  const size_t taken = devices_[static_cast<size_t>(device)].taken;
  return taken == 0 || (taken <= bytes_max_ && bytes <= bytes_max_ - taken);
}

ScratchPool::Buffer ScratchPool::take(DeviceKind device, size_t bytes) {
  OfDevice& of_device = devices_[static_cast<size_t>(device)];
  if (!too_many_.empty()) release_unused();
  // The smallest that fits; a small request leaves the big ones to those that need them.
  const size_t capacity = std::bit_ceil(std::max(bytes, kSmallest));
  auto best = of_device.free.end();
  for (auto place = of_device.free.begin(); place != of_device.free.end(); ++place) {
    if (place->capacity < bytes || place->capacity / 4 > capacity) continue;
    if (best == of_device.free.end() || place->capacity < best->capacity) best = place;
  }
  Buffer buffer;
  if (best == of_device.free.end()) {
    buffer.memory = domain(device).allocate(capacity);
    buffer.capacity = capacity;
  } else {
    buffer = std::move(*best);
    of_device.free.erase(best);
  }
  buffer.asked = bytes;
  of_device.taken += bytes;
  return buffer;
}

void ScratchPool::give_back(DeviceKind device, Buffer buffer,
                            std::shared_ptr<Event> last_used) noexcept {
  OfDevice& of_device = devices_[static_cast<size_t>(device)];
  of_device.taken -= buffer.asked;
  buffer.last_used = std::move(last_used);
  try {
    if (of_device.free.size() == kKept) {
      too_many_.push_back(std::move(of_device.free.front()));
      of_device.free.erase(of_device.free.begin());
      release_unused();
    }
    of_device.free.push_back(std::move(buffer));
  } catch (...) {  // no memory to note it, or the device has failed
    keep_for_ever(std::move(buffer.memory));
  }
}

void ScratchPool::leak(DeviceKind device, Buffer buffer) noexcept {
  devices_[static_cast<size_t>(device)].taken -= buffer.asked;
  keep_for_ever(std::move(buffer.memory));
}

void ScratchPool::release_unused() {
  std::erase_if(too_many_, [](const Buffer& buffer) { return !in_use(buffer); });
}

}  // namespace horon::core
