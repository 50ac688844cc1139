// Limits how many collectives of a set are under way between hosts at a time. They begin in the
// order of their start and end in any order.
#pragma once

#include <cstdint>

namespace horon::ops {

// One thread at a time.
class ExchangeWindow {
 public:
  // More would not make the wire faster.
  static constexpr uint64_t kAtOnce = 4;
  // A collective's own tags and cells are used again by the one this many later. A rank may be
  // further ahead of its peers than that: one that only sends need not wait for them. Tags are safe
  // all the same: each rank ends collective n before it begins n + kAtOnce, so all ranks post the
  // messages of one tag in the same order, in which they also arrive. Cells are safe since nobody
  // uses one again before all ranks of the host have left it (HostCells::left()).
  static constexpr uint64_t kDistinct = 2 * kAtOnce;

  // The number of the next collective that is started.
  uint64_t take_number() { return next_++; }
  bool may_begin(uint64_t number) const { return number < ended_through_ + kAtOnce; }
  void note_ended(uint64_t number) {
    ended_[number % kDistinct] = true;
    while (ended_[ended_through_ % kDistinct]) ended_[ended_through_++ % kDistinct] = false;
  }

 private:
  uint64_t next_ = 0;
  uint64_t ended_through_ = 0;  // all below have ended on this rank
  bool ended_[kDistinct] = {};  // those from there on
};

}  // namespace horon::ops
