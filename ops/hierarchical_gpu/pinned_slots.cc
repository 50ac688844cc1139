#include "horon/ops/hierarchical_gpu/pinned_slots.h"

#include <algorithm>

#include "horon/core/base/keep_for_ever.h"
#include "horon/ops/cuda/free_pinned.h"

namespace horon::ops {
PinnedSlots::~PinnedSlots() {
  const bool in_use = std::any_of(taken_.begin(), taken_.end(), [](bool taken) { return taken; });
  if (in_use) core::keep_for_ever(std::move(memory_));
}

bool PinnedSlots::is_made() {
  if (memory_ != nullptr) return true;
  if (making_ == nullptr) {
    making_ =
        std::make_unique<BackgroundCall<Memory>>([gpu = gpu_, bytes = kSlots * bytes_of_slot_] {
          const std::shared_ptr<CudaApi> api = gpu->cuda();
          api->use_in_own_thread();
          return Memory(api->allocate_pinned(bytes),
                        [api](std::byte* memory) { free_pinned_elsewhere(api, memory); });
        });
  }
  if (std::optional<Memory> made = making_->take()) memory_ = std::move(*made);
  return memory_ != nullptr;
}

bool PinnedSlots::take(uint64_t number) {
  bool& taken = taken_[number % kSlots];
  if (taken) return false;
  taken = true;
  return true;
}

}  // namespace horon::ops
