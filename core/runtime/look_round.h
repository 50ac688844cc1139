// Spreads looks at many things over time: each has its turn once per round, and no moment has to
// look at all of them.
#pragma once

#include <cstddef>

#include "horon/core/negotiation/effects.h"

namespace horon::core {

class LookRound {
 public:
  // A loop that rests wakes every 250 ms and then looks at all, as a round has passed.
  static constexpr Nanos kLength = 200'000'000;

  // Of `count` things: how many have their turn now, the next ones in line.
  size_t due(size_t count, Nanos now) {
    const Nanos passed = now - told_until_;
    if (count == 0 || passed >= kLength) {
      told_until_ = now;
      return count;
    }
    const auto all = static_cast<Nanos>(count);
    const Nanos due = all * passed / kLength;
    told_until_ += due * kLength / all;
    return static_cast<size_t>(due);
  }

 private:
  Nanos told_until_ = -kLength;
};

}  // namespace horon::core
