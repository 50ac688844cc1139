// Shareable memory of one process, given out in blocks that are reused.
//
// A block's size is rounded up to a size class (one eighth of a power of two, so at most 12.5 % is
// lost from 32 KiB on). Small classes share a segment, so that many small blocks don't cost many
// descriptors. Freed blocks wait for the next request of their class: peers keep their mapping and
// nobody pays for page faults again. Pages of unused large blocks beyond `cached_bytes_max` go back
// to the system, and all of them before an allocation fails for want of memory; address and
// descriptor stay.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

#include "horon/core/host/shared_segment.h"

namespace horon::core {

struct SharedAddress;

// Any thread. Blocks keep the heap alive, so they may outlive everything else.
//
// The child of a fork inherits the objects but not the memory (shared_segment.h). Releasing a block
// there changes nothing, and allocate() throws Error(NotInitialized).
class SharedHeap : public std::enable_shared_from_this<SharedHeap> {
 public:
  // How much unused memory stays for the next blocks.
  static constexpr size_t kCachedBytesMax = size_t{1} << 30;
  // The same for each of so many ranks of a host: 4 GiB in all, but never less than 64 MiB each.
  static size_t cached_bytes_max(int local_size);
  explicit SharedHeap(size_t cached_bytes_max = kCachedBytesMax, Reach reach = Reach::ByProcess)
      : cached_bytes_max_(cached_bytes_max), reach_(reach) {}

  // Aligned to 4 KiB and touched; `zeroed` false leaves what the last holder wrote. Throws
  // Error(Limit).
  std::shared_ptr<std::byte> allocate(size_t bytes, bool zeroed);
  // The same for a short time, not zeroed. Each segment keeps a descriptor for good, and these
  // blocks may be many: null if no block is free and kReusedSegmentsMax have been made for them.
  std::shared_ptr<std::byte> allocate_reused(size_t bytes);
  static constexpr size_t kReusedSegmentsMax = 64;
  std::optional<SharedAddress> locate(const std::byte* data, size_t bytes) const;
  // The memory at an address of this very heap; null if there is none.
  std::byte* find(const SharedAddress& address) const;

  size_t segment_count() const;
  size_t cached_bytes() const;

  static size_t size_class(size_t bytes);

 private:
  struct Slab {
    SharedSegment segment;
    size_t block_bytes = 0;
    std::vector<bool> live;  // [block]
    bool released = false;   // its pages went back to the system; a slab of one unused block
  };
  struct Block {
    Slab* slab = nullptr;
    size_t index = 0;
    std::byte* data() const { return slab->segment.data() + index * slab->block_bytes; }
  };

  void check(size_t bytes) const;
  std::shared_ptr<std::byte> hand_out(const Block& block);
  std::optional<Block> take_waiting(size_t block_bytes, bool zeroed);
  std::optional<Block> take_unused(size_t block_bytes);
  Block make_slab(size_t block_bytes);
  void prepare(const Block& block, bool zeroed);
  void give_back(const Block& block) noexcept;
  template <class Step>
  void take_memory(const Step& step);
  bool release_cached() noexcept;
  std::optional<Block> take_cached() noexcept;
  bool put_away(const Block& block, bool releases,
                std::unique_lock<std::shared_mutex>& lock) noexcept;
  const Slab* slab_of(const std::byte* data) const;

  const pid_t owner_ = getpid();
  const size_t cached_bytes_max_;
  const Reach reach_;  // of its segments
  mutable std::shared_mutex mutex_;
  std::map<const std::byte*, std::unique_ptr<Slab>> slabs_;  // by first byte; never removed
  // By class; the last freed is the first taken. Each has room for all blocks of its class.
  std::map<size_t, std::vector<Block>> unused_;
  std::atomic<size_t> reused_segments_{0};  // asked for by allocate_reused()
  size_t cached_bytes_ = 0;                 // in unused blocks that hold pages
};

}  // namespace horon::core
