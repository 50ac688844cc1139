// A number in memory that the ranks of a host share.
#pragma once

#include <atomic>
#include <cstdint>

#include "horon/core/base/round_up.h"

namespace horon::core {

// On a cache line of its own, so that writes to neighbouring data do not slow its readers down.
// Zeroed memory is a counter of 0.
struct alignas(kCacheLineBytes) SharedCounter {
  std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // it works between processes

}  // namespace horon::core
