// Spreads looks at many things over time: each has its turn once per round, and no moment has to
// look at all of them.
#pragma once

#include <algorithm>
#include <cstddef>

#include "horon/core/negotiation/effects.h"

namespace horon::core {

class LookRound {
 public:
  // A loop that rests wakes every 250 ms and then looks at all, as a round has passed.
  static constexpr Nanos kLength = 200'000'000;

  // Of `count` things: how many have their turn now, the next ones in line. `in_haste`: something
  // else waits for that; then they are few, and the others soon, unless a whole round is late.
  size_t due(size_t count, Nanos now, bool in_haste = false) {
    const Nanos passed = now - told_until_;
    const bool late = passed >= (in_haste ? 2 * kLength : kLength);
    if (count == 0 || late) {
      told_until_ = now;
      return count;
    }
    const auto all = static_cast<Nanos>(count);
    Nanos due = std::min(all, all * passed / kLength);
    if (in_haste) due = std::min(due, kInHaste);
    told_until_ += due * kLength / all;
    return static_cast<size_t>(due);
  }

 private:
  static constexpr Nanos kInHaste = 8;

  Nanos told_until_ = -kLength;
};

}  // namespace horon::core
