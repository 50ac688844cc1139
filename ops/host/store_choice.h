// How a rank fills a ring that several others read: by plain stores, or past the caches.
//
// A line that others have read is dear to write in the cache, since it must be withdrawn from all
// of theirs; but a line that was stored past the caches is read from memory. Which costs more
// differs between processors: on an AMD EPYC of 2023 the plain store, on an Intel Xeon of 2024 the
// other one (bench/results/README.md). So the rank tries both and keeps to the faster one.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace horon::ops {

// Used by one thread at a time.
class StoreChoice {
 public:
  // Whether to fill the next block past the caches. `noted`: note() will follow, so it may be a
  // trial.
  bool past_caches(bool noted) const {
    const bool is_try = uses_ < kFirstTries ? uses_ % 2 == 1 : uses_ % kTryEach == 0;
    return is_faster_past_caches() != (noted && is_try);
  }
  // Notes the time of a block that was filled in this way. Only for blocks that are much longer
  // than the ring: filling others does not wait for the readers.
  void note(bool past_caches, double ns_per_byte) {
    ++uses_;
    // Other load makes a time longer, never shorter; old values fade, in case the load stays.
    for (double& best : best_) best *= kFade;
    double& best = best_[past_caches ? 1 : 0];
    best = std::min(best, ns_per_byte);
  }

 private:
  // True also while nothing is known.
  bool is_faster_past_caches() const { return best_[1] <= best_[0]; }

  static constexpr uint64_t kFirstTries = 8;
  static constexpr uint64_t kTryEach = 31;  // not each second one: blocks of a step may alternate
  static constexpr double kFade = 1.02;

  std::array<double, 2> best_{std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::infinity()};
  uint64_t uses_ = 0;
};

}  // namespace horon::ops
