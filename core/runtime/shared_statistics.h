// The statistics of all process sets of a rank together: the loop adds, any thread reads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "horon/core/base/statistics.h"

namespace horon::core {

class SharedStatistics {
 public:
  // Adds what has changed in the statistics of one set from `before` to `now`. A number may have
  // become smaller.
  void add(const Statistics& before, const Statistics& now) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const uint64_t change = now.*kStatisticNames[i].field - before.*kStatisticNames[i].field;
      if (change == 0) continue;
      // Only one thread adds at a time.
      values_[i].store(values_[i].load(std::memory_order_relaxed) + change,
                       std::memory_order_relaxed);
    }
  }
  // Each number is exact, but they are not all of one moment.
  Statistics read() const {
    Statistics statistics;
    for (size_t i = 0; i < values_.size(); ++i) {
      statistics.*kStatisticNames[i].field = values_[i].load(std::memory_order_relaxed);
    }
    return statistics;
  }

 private:
  std::array<std::atomic<uint64_t>, kStatisticNames.size()> values_{};
};

}  // namespace horon::core
