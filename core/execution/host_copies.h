// Copies in host memory, on which a batch of the host works in place of device memory. They serve
// process sets in which some ranks have a device and others have none: the spec says Host on all
// ranks, and a rank with a device brings its tensors to the host and the results back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/block_layout.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/event.h"
#include "horon/core/execution/memory_queue.h"
#include "horon/core/execution/scratch_pool.h"

namespace horon::core {

// For one batch, which makes the calls below in their order. All but the last throw Error if the
// device has failed, or the host has no memory.
class HostCopies {
 public:
  static bool are_needed(const std::vector<EntryWork>& entries);
  // The arguments outlive this. `blocks`: null unless moves_blocks(). `is_source`: this rank is the
  // root of a broadcast.
  HostCopies(std::vector<EntryWork>& entries, const BlockLayout* blocks, bool is_source,
             ScratchPool& pool);
  // What end() has not given back stays for ever.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // False: the pool's limit would be exceeded, which the oldest batch may do.
  bool has_room() const { return pool_.has_room(domain_, bytes_); }
  // Gives the entries host memory in place of their own, and allocators that give host memory for
  // their results. False: the device is being opened, or the memory is being made; ask again.
  bool place();
  // Call it once the tensors are ready. True: the copies hold what the tensors hold. False: ask
  // again.
  bool bring();
  // Call it when the batch has its results. The event happens when the tensors have them too.
  std::shared_ptr<Event> take_back();
  // Call it when that event has happened, or the batch has failed. Gives the entries back what they
  // had before. `in_use`: a peer may still write to the copies.
  void end(bool in_use) noexcept;

 private:
  // One stretch of a tensor of this rank.
  struct Stretch {
    const std::byte* from = nullptr;  // on the device; null: nothing is brought
    std::byte* to = nullptr;          // on the device; null: nothing is taken back
    size_t at = 0;                    // of the copy in the memory here
    size_t bytes = 0;
  };
  // One entry whose memory is on the device.
  struct Replaced {
    EntryWork* entry = nullptr;
    std::vector<MemoryPart> memory;
    AllocateOutput allocate_output;
    std::vector<size_t> results;  // moves_blocks(): for each part its place among the stretches
  };

  void plan(EntryWork& entry, const BlockLayout* blocks, bool is_source);
  size_t add(Stretch stretch);
  void replace(Replaced& replaced);
  enum class Way : uint8_t { ToHost, Back };
  std::shared_ptr<Event> enqueue(MemoryQueue& queue, Way way) const;
  std::byte* copy_of(const Stretch& stretch) const { return scratch_.memory.get() + stretch.at; }

  ScratchPool& pool_;
  MemoryDomain& domain_;
  std::vector<Stretch> stretches_;
  std::vector<Replaced> replaced_;
  size_t bytes_ = 0;
  ScratchPool::Buffer scratch_;
  bool placed_ = false;
  std::shared_ptr<Event> brought_;  // null: nothing has been asked for
};

}  // namespace horon::core
