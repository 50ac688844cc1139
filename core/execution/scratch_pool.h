// Memory that collectives need beside the tensors: fusion buffers, and what ops convert into. It is
// kept for reuse, since fresh memory costs page faults.
//
// A buffer may be given back as soon as all work that uses it is enqueued: its next user enqueues
// its own work behind that.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "horon/core/execution/memory_domain.h"

namespace horon::core {

// One thread at a time.
class ScratchPool {
 public:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    size_t capacity = 0;               // bytes
    std::shared_ptr<Event> last_used;  // null: nothing that is enqueued uses it
  };

  static constexpr size_t kNoLimit = ~size_t{0};

  // The first domain of each kind of device serves its ordinary batches. Behind it there may be one
  // of host memory into which tensors are copied for other ops
  // (MemoryDomain::ops_reach_tensors()), and one for captures (MemoryDomain::is_for_captures()).
  // `bytes_max` limits what the pool holds for each domain: taken, still used by the device, or
  // kept. Only callers that must not wait exceed it; the last buffer that came back is kept, even
  // if it is larger.
  explicit ScratchPool(std::vector<std::unique_ptr<MemoryDomain>> domains,
                       size_t bytes_max = kNoLimit);
  // Memory that is in use is kept for ever.
  ~ScratchPool();
  ScratchPool(const ScratchPool&) = delete;
  ScratchPool& operator=(const ScratchPool&) = delete;

  // The first of its kind; null if there is none.
  MemoryDomain* find(DeviceKind device) const;
  // Throws Error(Config) if there is none.
  MemoryDomain& domain(DeviceKind device) const;
  // The one whose scratch lies in host memory, if there are two; else the one there is.
  MemoryDomain& domain_of_host_copies(DeviceKind device) const;
  // Throws Error(Config) if there is none.
  MemoryDomain& domain_of_captures(DeviceKind device) const;
  // Below, `domain` is one of this pool's.
  // False: take() would go beyond the limit. Throws Error if the device has failed.
  bool has_room(const MemoryDomain& domain, size_t bytes) const;
  // False: take() would have to wait until memory is made; ask again. Throws Error if there is
  // none.
  bool has_at_hand(MemoryDomain& domain, size_t bytes);
  // At least `bytes`, not initialised. Throws Error if there is no memory, or the device has
  // failed.
  Buffer take(MemoryDomain& domain, size_t bytes);
  // `last_used`: happens when all enqueued work that uses the buffer is done; null: it is done.
  void give_back(const MemoryDomain& domain, Buffer buffer,
                 std::shared_ptr<Event> last_used) noexcept;
  // Somebody may use it as long as the process lives: it is kept for ever.
  void leak(Buffer buffer) noexcept;

  // Sums over all domains.
  struct Usage {
    size_t bytes = 0;
    size_t bytes_peak = 0;
  };
  Usage usage() const { return usage_; }
  size_t bytes_max() const { return bytes_max_; }

 private:
  static constexpr size_t kSmallest = 64 << 10;

  struct OfDomain {
    std::unique_ptr<MemoryDomain> domain;
    std::vector<Buffer> free;  // in the order in which they came back
    size_t buffers = 0;        // taken or free
    size_t bytes = 0;          // of these
  };
  using FreeBuffer = std::vector<Buffer>::iterator;

  static size_t size_class(size_t bytes);
  static FreeBuffer smallest_free(OfDomain& of, size_t bytes, size_t bytes_max);
  const OfDomain& of(const MemoryDomain& domain) const;
  OfDomain& of(const MemoryDomain& domain);
  FreeBuffer choose_free(OfDomain& of, size_t bytes) const;
  bool may_hold_more(const OfDomain& of, size_t bytes) const;
  void make_room(OfDomain& of, size_t bytes);
  Buffer allocate(OfDomain& of, size_t bytes);
  void release_unused(OfDomain& of, size_t count, size_t bytes_max);

  std::vector<OfDomain> domains_;
  const size_t bytes_max_;
  Usage usage_;
};

}  // namespace horon::core
