// Whether a ring wakes a thread that waits for the doorbell.
#pragma once

#include <chrono>

#include "horon/core/host/doorbell.h"
#include "horon/tests/support/long_enough.h"

namespace horon::core {

// A wait that ends by its timeout still finds a ring whose wake-up was lost, so the time tells.
inline bool woken(Doorbell& bell, const WaitPolicy& policy) {
  const auto begin = std::chrono::steady_clock::now();
  return bell.wait(kLongEnough, policy) && std::chrono::steady_clock::now() - begin < kLongEnough;
}

}  // namespace horon::core
