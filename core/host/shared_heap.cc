#include "horon/core/host/shared_heap.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/round_up.h"
#include "horon/core/host/local_group.h"

namespace horon::core {

namespace {

constexpr size_t kBlockBytesMin = 4096;
constexpr size_t kSlabBytes = size_t{256} << 10;
constexpr size_t kStepsPerDoubling = 8;

// If descriptors are missing, giving back unused memory does not help.
bool has_descriptors() {
  const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0) close(descriptor);
  return descriptor >= 0;
}

}  // namespace

size_t SharedHeap::cached_bytes_max(int local_size) {
  constexpr size_t of_host = 4 * kCachedBytesMax;
  constexpr size_t least = size_t{64} << 20;
  return std::clamp(of_host / static_cast<size_t>(local_size), least, kCachedBytesMax);
}

size_t SharedHeap::size_class(size_t bytes) {
  if (bytes <= kBlockBytesMin) return kBlockBytesMin;
  const size_t step = std::max(kBlockBytesMin, std::bit_floor(bytes) / kStepsPerDoubling);
  return round_up(bytes, step);
}

void SharedHeap::check(size_t bytes) const {
  if (getpid() != owner_) {
    throw Error(ErrorCode::NotInitialized,
                "shared memory belongs to the process that began the session, and this one is a "
                "fork of it");
  }
  if (bytes > SIZE_MAX / 4)
    throw Error(ErrorCode::Limit, "an allocation of more bytes than can be addressed");
}

std::shared_ptr<std::byte> SharedHeap::hand_out(const Block& block) {
  auto release = [heap = shared_from_this(), block](std::byte*) { heap->give_back(block); };
  return std::shared_ptr<std::byte>(block.data(), std::move(release));
}

std::shared_ptr<std::byte> SharedHeap::allocate(size_t bytes, bool zeroed) {
  check(bytes);
  const size_t block_bytes = size_class(bytes);
  const std::optional<Block> block = take_waiting(block_bytes, zeroed);
  return hand_out(block ? *block : make_slab(block_bytes));
}

std::shared_ptr<std::byte> SharedHeap::allocate_reused(size_t bytes) {
  check(bytes);
  const size_t block_bytes = size_class(bytes);
  if (const std::optional<Block> block = take_waiting(block_bytes, false)) return hand_out(*block);
  if (reused_segments_.fetch_add(1) >= kReusedSegmentsMax) {
    reused_segments_.fetch_sub(1);
    return nullptr;
  }
  try {
    return hand_out(make_slab(block_bytes));
  } catch (...) {
    reused_segments_.fetch_sub(1);
    throw;
  }
}

std::optional<SharedHeap::Block> SharedHeap::take_waiting(size_t block_bytes, bool zeroed) {
  const std::optional<Block> block = take_unused(block_bytes);
  if (block) prepare(*block, zeroed);
  return block;
}

std::optional<SharedHeap::Block> SharedHeap::take_unused(size_t block_bytes) {
  const std::unique_lock lock(mutex_);
  const auto found = unused_.find(block_bytes);
  if (found == unused_.end() || found->second.empty()) return std::nullopt;
  const Block block = found->second.back();
  found->second.pop_back();
  block.slab->live[block.index] = true;
  if (!block.slab->released) cached_bytes_ -= block_bytes;
  return block;
}

// Touching memory takes long, so it happens outside the lock: no other thread has this block.
void SharedHeap::prepare(const Block& block, bool zeroed) {
  if (block.slab->released) {
    try {
      take_memory([&] { block.slab->segment.restore_pages(); });
    } catch (...) {
      const std::unique_lock lock(mutex_);
      // Gives back the pages that it got before memory ran out.
      if (block.slab->segment.renew_generation()) block.slab->segment.release_pages();
      block.slab->live[block.index] = false;
      unused_[block.slab->block_bytes].push_back(block);
      throw;
    }
    block.slab->released = false;
  } else if (zeroed) {
    std::memset(block.data(), 0, block.slab->block_bytes);
  }
}

// A new slab; its first block is taken, the rest wait.
SharedHeap::Block SharedHeap::make_slab(size_t block_bytes) {
  const size_t count = std::max<size_t>(1, kSlabBytes / block_bytes);
  auto slab = std::make_unique<Slab>();
  take_memory([&] { slab->segment = SharedSegment::create(count * block_bytes, reach_); });
  slab->block_bytes = block_bytes;
  slab->live.assign(count, false);
  slab->live[0] = true;
  Slab* const raw = slab.get();
  const std::unique_lock lock(mutex_);
  size_t blocks = count;  // of this class
  for (const auto& [start, other] : slabs_) {
    if (other->block_bytes == block_bytes) blocks += other->live.size();
  }
  std::vector<Block>& unused = unused_[block_bytes];
  unused.reserve(blocks);  // so that give_back() needs no memory
  slabs_.emplace(raw->segment.data(), std::move(slab));
  for (size_t index = count - 1; index > 0; --index) unused.push_back({raw, index});
  cached_bytes_ += (count - 1) * block_bytes;
  return {raw, 0};
}

void SharedHeap::give_back(const Block& block) noexcept {
  // Before the lock: at the fork another thread of the parent may have held it.
  if (getpid() != owner_) return;
  std::unique_lock lock(mutex_);
  Slab& slab = *block.slab;
  slab.live[block.index] = false;
  const bool is_too_much =
      slab.live.size() == 1 && cached_bytes_ + slab.block_bytes > cached_bytes_max_;
  (void)put_away(block, is_too_much, lock);
}

// Puts the block, which nobody has, among the unused ones. True if its pages went back to the
// system. The lock is held, but released while that happens: it takes long, and collectives
// locate() their memory.
bool SharedHeap::put_away(const Block& block, bool releases,
                          std::unique_lock<std::shared_mutex>& lock) noexcept {
  Slab& slab = *block.slab;
  const bool released = releases && slab.segment.renew_generation();
  if (released) {
    lock.unlock();
    slab.segment.release_pages();
    lock.lock();
    slab.released = true;
  } else {
    cached_bytes_ += slab.block_bytes;
  }
  unused_[slab.block_bytes].push_back(block);
  return released;
}

// Runs a step that takes memory from the system and throws Error(Limit) if there is none. Tries
// once more, if unused blocks had some.
template <class Step>
void SharedHeap::take_memory(const Step& step) {
  try {
    return step();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Limit || !has_descriptors() || !release_cached()) throw;
  }
  step();
}

// Gives back the pages of all unused large blocks. False: there were none.
bool SharedHeap::release_cached() noexcept {
  bool any = false;
  std::unique_lock lock(mutex_);
  while (const std::optional<Block> block = take_cached()) {
    if (!put_away(*block, /*releases=*/true, lock)) break;
    any = true;
  }
  return any;
}

// Takes one of these blocks; the lock is held.
std::optional<SharedHeap::Block> SharedHeap::take_cached() noexcept {
  for (auto& [block_bytes, blocks] : unused_) {
    const auto found = std::find_if(blocks.begin(), blocks.end(), [](const Block& block) {
      return block.slab->live.size() == 1 && !block.slab->released;
    });
    if (found == blocks.end()) continue;
    const Block block = *found;
    blocks.erase(found);
    cached_bytes_ -= block_bytes;
    return block;
  }
  return std::nullopt;
}

// The slab that holds this byte; the lock is held.
const SharedHeap::Slab* SharedHeap::slab_of(const std::byte* data) const {
  auto after = slabs_.upper_bound(data);
  if (after == slabs_.begin()) return nullptr;
  const Slab* const slab = std::prev(after)->second.get();
  return data < slab->segment.data() + slab->segment.bytes() ? slab : nullptr;
}

std::optional<SharedAddress> SharedHeap::locate(const std::byte* data, size_t bytes) const {
  const std::shared_lock lock(mutex_);
  const Slab* const slab = slab_of(data);
  if (slab == nullptr) return std::nullopt;
  const auto offset = static_cast<size_t>(data - slab->segment.data());
  const size_t index = offset / slab->block_bytes;
  const size_t left_in_block = (index + 1) * slab->block_bytes - offset;
  if (bytes > left_in_block || !slab->live[index]) return std::nullopt;
  return SharedAddress{static_cast<uint64_t>(slab->segment.descriptor()),
                       slab->segment.generation(), offset};
}

std::byte* SharedHeap::find(const SharedAddress& address) const {
  const std::shared_lock lock(mutex_);
  for (const auto& [start, slab] : slabs_) {
    const SharedSegment& segment = slab->segment;
    if (segment.generation() == address.generation && address.offset < segment.bytes()) {
      return segment.data() + address.offset;
    }
  }
  return nullptr;
}

size_t SharedHeap::segment_count() const {
  const std::shared_lock lock(mutex_);
  return slabs_.size();
}

size_t SharedHeap::cached_bytes() const {
  const std::shared_lock lock(mutex_);
  return cached_bytes_;
}

}  // namespace horon::core
