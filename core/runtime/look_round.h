// Spreads looks at many things over time: each thing has its turn once per round, so that a busy
// caller need not look at all of them at once.
#pragma once

#include <algorithm>
#include <cstddef>

#include "horon/core/negotiation/effects.h"

namespace horon::core {

class LookRound {
 public:
  // A loop that rests wakes every 250 ms: by then a round has passed, and it looks at all things.
  static constexpr Nanos kLength = 200'000'000;

  // How many of `count` things have their turn now: the next ones in line. `in_haste`: other work
  // waits for this, so only a few have their turn, unless the round is late by a whole round.
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
