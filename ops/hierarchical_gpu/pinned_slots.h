// The host memory through which the pieces of an allreduce go between a GPU and the wire: a few
// slots, each for one piece at a time. So it also limits how many pieces are under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "horon/ops/cuda/background_call.h"
#include "horon/ops/nccl/job_gpu.h"

namespace horon::ops {

// Pinning memory and giving it back may wait for all work of the device, also for kernels that wait
// for peers. So each is done once, on a separate thread. One thread at a time.
class PinnedSlots {
 public:
  static constexpr uint64_t kSlots = 8;

  // Makes nothing yet.
  PinnedSlots(std::shared_ptr<JobGpu> gpu, size_t bytes_of_slot)
      : gpu_(std::move(gpu)), bytes_of_slot_(bytes_of_slot) {}
  // Memory with a taken slot is kept for ever: the device or a peer may still use it.
  ~PinnedSlots();
  PinnedSlots(const PinnedSlots&) = delete;
  PinnedSlots& operator=(const PinnedSlots&) = delete;

  // Ask again until true: then there is memory. Throws Error if there is none.
  bool is_made();
  // Takes the slot of the pieces `number`, `number` + kSlots, ... False: the piece before has not
  // given it back.
  bool take(uint64_t number);
  // The memory of the piece's slot, after is_made().
  std::byte* memory(uint64_t number) const {
    return memory_.get() + number % kSlots * bytes_of_slot_;
  }
  void give_back(uint64_t number) { taken_[number % kSlots] = false; }

 private:
  using Memory = std::shared_ptr<std::byte>;

  const std::shared_ptr<JobGpu> gpu_;
  const size_t bytes_of_slot_;
  std::unique_ptr<BackgroundCall<Memory>> making_;
  Memory memory_;
  std::array<bool, kSlots> taken_{};
};

}  // namespace horon::ops
