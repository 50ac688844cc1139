// The statistics of all process sets of a rank together: the loop adds, any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

#include "horon/core/negotiation/statistics.h"

namespace horon::core {

class SharedStatistics {
 public:
  // What a set's have become since they were `before`.
  void add(const Statistics& before, const Statistics& now) {
    add(freezes_, now.freezes - before.freezes);
    add(thaws_, now.thaws - before.thaws);
    add(frozen_starts_, now.frozen_starts - before.frozen_starts);
    add(void_starts_, now.void_starts - before.void_starts);
    add(control_messages_, now.control_messages - before.control_messages);
  }
  // Each number by itself; not all of one moment.
  Statistics read() const {
    return {freezes_.load(std::memory_order_relaxed), thaws_.load(std::memory_order_relaxed),
            frozen_starts_.load(std::memory_order_relaxed),
            void_starts_.load(std::memory_order_relaxed),
            control_messages_.load(std::memory_order_relaxed)};
  }

 private:
  // Only one thread adds at a time.
  static void add(std::atomic<uint64_t>& to, uint64_t more) {
    if (more > 0) to.store(to.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> freezes_{0};
  std::atomic<uint64_t> thaws_{0};
  std::atomic<uint64_t> frozen_starts_{0};
  std::atomic<uint64_t> void_starts_{0};
  std::atomic<uint64_t> control_messages_{0};
};

}  // namespace horon::core
