#include "horon/core/execution/scratch_pool.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

bool in_use(const ScratchPool::Buffer& buffer) {
  return buffer.last_used != nullptr && !buffer.last_used->happened();
}

// True also if the device has failed: it is not known what it still writes.
bool may_be_in_use(const ScratchPool::Buffer& buffer) noexcept {
  try {
    return in_use(buffer);
  } catch (...) {
    return true;
  }
}

}  // namespace

ScratchPool::ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains, size_t bytes_max)
    : bytes_max_(bytes_max) {
  for (auto& domain : domains) domains_.push_back({std::move(domain), {}});
}

ScratchPool::~ScratchPool() {
  for (OfDomain& of : domains_) {
    for (Buffer& buffer : of.free) {
      if (may_be_in_use(buffer)) keep_for_ever(std::move(buffer.memory));
    }
  }
}

MemoryDomain* ScratchPool::find(DeviceKind device) const {
  for (const OfDomain& of : domains_) {
    if (of.domain->device() == device) return of.domain.get();
  }
  return nullptr;
}

MemoryDomain& ScratchPool::domain(DeviceKind device) const {
  if (MemoryDomain* const found = find(device)) return *found;
  throw Error(ErrorCode::Config,
              concat("this build has no support for ", to_string(device), " memory"));
}

MemoryDomain& ScratchPool::domain_of_host_copies(DeviceKind device) const {
  for (const OfDomain& of : domains_) {
    if (of.domain->device() == device && !of.domain->ops_reach_tensors()) return *of.domain;
  }
  return domain(device);
}

MemoryDomain& ScratchPool::domain_of_captures(DeviceKind device) const {
  for (const OfDomain& of : domains_) {
    if (of.domain->device() == device && of.domain->is_for_captures()) return *of.domain;
  }
  throw Error(ErrorCode::Config,
              concat("collectives of ", to_string(device), " memory can't be captured here"));
}

const ScratchPool::OfDomain& ScratchPool::of(const MemoryDomain& domain) const {
  const auto found = std::find_if(domains_.begin(), domains_.end(), [&](const OfDomain& candidate) {
    return candidate.domain.get() == &domain;
  });
  HORON_CHECK(found != domains_.end(), "a domain is one of the pool that is asked");
  return *found;
}

ScratchPool::OfDomain& ScratchPool::of(const MemoryDomain& domain) {
  return const_cast<OfDomain&>(std::as_const(*this).of(domain));
}

// Four sizes for each power of two: requests of about the same size share buffers, and a buffer is
// at most a quarter larger than asked for.
size_t ScratchPool::size_class(size_t bytes) {
  const size_t wanted = std::max(bytes, kSmallest);
  const size_t step = std::max(std::bit_floor(wanted) / 4, size_t{1});
  return round_up(wanted, step);
}

ScratchPool::FreeBuffer ScratchPool::smallest_free(OfDomain& of, size_t bytes, size_t bytes_max) {
  FreeBuffer best = of.free.end();
  for (FreeBuffer candidate = of.free.begin(); candidate != of.free.end(); ++candidate) {
    if (candidate->capacity < bytes || candidate->capacity > bytes_max) continue;
    if (best == of.free.end() || candidate->capacity < best->capacity) best = candidate;
  }
  return best;
}

// What is free and not in use can be released first.
bool ScratchPool::may_hold_more(const OfDomain& of, size_t bytes) const {
  if (bytes_max_ == kNoLimit) return true;
  size_t needed = of.bytes + bytes;
  for (const Buffer& buffer : of.free) {
    if (needed <= bytes_max_) break;
    if (!in_use(buffer)) needed -= buffer.capacity;
  }
  return needed <= bytes_max_;
}

bool ScratchPool::has_room(const MemoryDomain& domain, size_t bytes) const {
  const OfDomain& held = of(domain);
  const auto fits = [&](const Buffer& buffer) { return buffer.capacity >= bytes; };
  return std::any_of(held.free.begin(), held.free.end(), fits) ||
         may_hold_more(held, size_class(bytes));
}

// Returns the end if none will do.
ScratchPool::FreeBuffer ScratchPool::choose_free(OfDomain& of, size_t bytes) const {
  const size_t wanted = size_class(bytes);
  // A small request leaves the large ones to those that need them, as long as there is room.
  const FreeBuffer candidate = smallest_free(of, bytes, 4 * wanted);
  const bool at_limit = of.bytes > bytes_max_ || wanted > bytes_max_ - of.bytes;
  return candidate == of.free.end() && at_limit ? smallest_free(of, bytes, kNoLimit) : candidate;
}

bool ScratchPool::has_at_hand(MemoryDomain& domain, size_t bytes) {
  OfDomain& held = of(domain);
  if (choose_free(held, bytes) != held.free.end()) return true;
  make_room(held, size_class(bytes));
  return domain.has_at_hand(size_class(bytes));
}

ScratchPool::Buffer ScratchPool::take(MemoryDomain& domain, size_t bytes) {
  OfDomain& held = of(domain);
  const FreeBuffer candidate = choose_free(held, bytes);
  if (candidate == held.free.end()) return allocate(held, size_class(bytes));
  Buffer buffer = std::move(*candidate);
  held.free.erase(candidate);
  return buffer;
}

void ScratchPool::make_room(OfDomain& of, size_t bytes) {
  release_unused(of, of.free.size(), bytes < bytes_max_ ? bytes_max_ - bytes : 0);
}

ScratchPool::Buffer ScratchPool::allocate(OfDomain& of, size_t bytes) {
  make_room(of, bytes);
  of.free.reserve(of.buffers + 1);  // so that give_back() needs no memory
  Buffer buffer{nullptr, bytes, nullptr};
  try {
    buffer.memory = of.domain->allocate(bytes);
  } catch (const Error&) {
    // The free buffers of this pool may be the memory that is missing.
    const size_t before = of.bytes;
    release_unused(of, of.free.size(), 0);
    if (of.bytes == before) throw;
    buffer.memory = of.domain->allocate(bytes);
  }
  ++of.buffers;
  of.bytes += bytes;
  usage_.bytes += bytes;
  usage_.bytes_peak = std::max(usage_.bytes_peak, usage_.bytes);
  return buffer;
}

void ScratchPool::give_back(const MemoryDomain& domain, Buffer buffer,
                            std::shared_ptr<Event> last_used) noexcept {
  OfDomain& held = of(domain);
  buffer.last_used = std::move(last_used);
  held.free.push_back(std::move(buffer));
  // This one stays, even if it is larger than the limit: it will be asked for again.
  release_unused(held, held.free.size() - 1, bytes_max_);
}

// It still counts in usage(), since the process still holds it.
void ScratchPool::leak(Buffer buffer) noexcept { keep_for_ever(std::move(buffer.memory)); }

// Some of the first `count` free ones, until the pool holds `bytes_max`.
void ScratchPool::release_unused(OfDomain& of, size_t count, size_t bytes_max) {
  for (size_t i = 0; i < count && of.bytes > bytes_max;) {
    const FreeBuffer candidate = of.free.begin() + static_cast<ptrdiff_t>(i);
    if (may_be_in_use(*candidate)) {
      ++i;
      continue;
    }
    --of.buffers;
    of.bytes -= candidate->capacity;
    usage_.bytes -= candidate->capacity;
    of.free.erase(candidate);
    --count;
  }
}

}  // namespace horon::core
