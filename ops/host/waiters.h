// The ranks that wait for a change in shared memory, so that the rank that makes it wakes only
// those.
//
// A waiting rank announces itself and then looks once more at what it waits for. A publishing rank
// publishes and then looks who has announced itself (Dekker's pattern). Both use sequentially
// consistent accesses, also for the published value, so at least one of the two sees the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "horon/core/host/local_group.h"

namespace horon::ops {

// One bit for each rank of the host. Used by one thread of each rank.
class Waiters {
 public:
  // `area`: area_bytes() of zeroed memory that all ranks share, 64-byte aligned.
  Waiters(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int ranks);

  // Announces this rank. Look again after this, before sleeping on the doorbell.
  void announce();
  // Wakes the other ranks that have announced themselves. Their announcements are used up.
  void wake_all() {
    wake_if([](int /*rank*/) { return true; });
  }
  // The same, only for this other rank.
  void wake_one(int rank) {
    const uint64_t bit = uint64_t{1} << (rank % 64);
    if ((words_[rank / 64].load(std::memory_order_seq_cst) & bit) != 0) wake(rank / 64, bit, rank);
  }
  // The same, only for ranks for which wanted(rank) is true.
  template <class Wanted>
  void wake_if(const Wanted& wanted) {
    for (int word = 0; word * 64 < ranks_; ++word) {
      uint64_t bits = words_[word].load(std::memory_order_seq_cst);
      if (word == own_word_) bits &= ~own_bit_;
      for (; bits != 0; bits &= bits - 1) {
        const int rank = word * 64 + __builtin_ctzll(bits);
        if (wanted(rank)) wake(word, bits & -bits, rank);
      }
    }
  }

 private:
  void wake(int word, uint64_t bit, int rank);

  core::LocalGroup& group_;
  std::atomic<uint64_t>* words_;
  int ranks_;
  int own_word_;
  uint64_t own_bit_;
};

}  // namespace horon::ops
