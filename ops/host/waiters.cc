#include "horon/ops/host/waiters.h"

namespace horon::ops {

Waiters::Waiters(core::LocalGroup& group, std::byte* area)
    : group_(group),
      words_(reinterpret_cast<std::atomic<uint64_t>*>(area)),
      ranks_(group.local_size()),
      own_word_(group.local_rank() / 64),
      own_bit_(uint64_t{1} << (group.local_rank() % 64)) {}

size_t Waiters::area_bytes(int ranks) { return (static_cast<size_t>(ranks) + 511) / 512 * 64; }

void Waiters::announce() {
  // If the bit is still set, no rank has looked since. The next one that looks wakes this one.
  if ((words_[own_word_].load(std::memory_order_relaxed) & own_bit_) != 0) return;
  words_[own_word_].fetch_or(own_bit_, std::memory_order_seq_cst);
}

void Waiters::wake(int word, uint64_t bit, int rank) {
  const uint64_t before = words_[word].fetch_and(~bit, std::memory_order_seq_cst);
  if ((before & bit) != 0) group_.doorbell(rank).ring();
}

}  // namespace horon::ops
