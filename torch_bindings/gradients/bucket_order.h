// The order in which gradients fill the buckets, learned from the order in which they come.
//
// By itself a reducer takes the reverse of the parameters: most models register their modules in
// the order in which they run them. Where a model does not, each bucket holds some gradient that
// comes late, and waits for it. So one rank watches a step, as DDP does in its first one, and if
// buckets in the order of arrival would start clearly sooner, all ranks make such buckets.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "horon/torch_bindings/gradients/plan.h"

namespace horon::torch_detail {

// What has come in a step.
class ArrivalOrder {
 public:
  // Forgets what has come. No hook runs meanwhile, nor in stop() and arrived().
  void watch(size_t gradients);
  void stop() { watches_.store(false, std::memory_order_relaxed); }
  bool watches() const { return watches_.load(std::memory_order_relaxed); }

  // From the hooks, on any thread; those of one gradient come one after the other. Of several
  // arrivals the last counts: its bucket is not full before.
  void note(size_t gradient) {
    if (watches()) places_[gradient] = next_.fetch_add(1, std::memory_order_relaxed);
  }
  // The gradients that have come, in the order of arrival.
  std::vector<size_t> arrived() const;

 private:
  static constexpr uint64_t kNever = 0;

  std::atomic<bool> watches_{false};
  std::atomic<uint64_t> next_{kNever + 1};
  std::vector<uint64_t> places_;  // of each gradient
};

// An order of all `gradients`: those that have come, then the others, the last parameter first.
std::vector<size_t> order_of_all(std::span<const size_t> arrived, size_t gradients);

// How late a byte of a gradient can start to travel, from 0 to 1: the share of the gradients that
// have come by then, averaged over the bytes of those that came. Gradients that did not come hold
// no bucket up, as the reducer has learned by the next step.
double mean_start(const SlotGroups& buckets, std::span<const GradientLayout> layouts,
                  std::span<const size_t> arrived);

}  // namespace horon::torch_detail
