// Whether a doorbell wakes who waits for it.
#pragma once

#include <chrono>

#include "horon/core/host/doorbell.h"
#include "horon/tests/support/long_enough.h"

namespace horon::core {

// A wait that ends by its timeout finds a ring all the same, whose wake-up was lost.
inline bool woken(Doorbell& bell, const WaitPolicy& policy) {
  const auto begin = std::chrono::steady_clock::now();
  return bell.wait(kLongEnough, policy) && std::chrono::steady_clock::now() - begin < kLongEnough;
}

}  // namespace horon::core
