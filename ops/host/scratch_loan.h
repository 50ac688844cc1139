// Scratch memory that one running collective has taken from a pool.
#pragma once

#include <cstddef>
#include <utility>

#include "horon/core/execution/scratch_pool.h"

namespace horon::ops {

// When a collective is given up, a peer or MPI may still use its memory: what has not been given
// back by then is kept for ever. One thread at a time.
class ScratchLoan {
 public:
  // Takes host memory. `pool` outlives the loan; null: nothing is ever taken.
  explicit ScratchLoan(core::ScratchPool* pool) : pool_(pool) {}
  ~ScratchLoan() {
    if (buffer_.memory != nullptr) pool_->leak(std::move(buffer_));
  }
  ScratchLoan(const ScratchLoan&) = delete;
  ScratchLoan& operator=(const ScratchLoan&) = delete;

  // Only while nothing is taken. Throws as ScratchPool::take().
  std::byte* take(size_t bytes) {
    buffer_ = pool_->take(pool_->domain(DeviceKind::Host), bytes);
    return memory();
  }
  // Nobody uses it any more. Does nothing if nothing is taken.
  void give_back() noexcept {
    if (buffer_.memory == nullptr) return;
    pool_->give_back(pool_->domain(DeviceKind::Host), std::move(buffer_), nullptr);
    buffer_ = {};
  }
  // Null: nothing is taken.
  std::byte* memory() const { return buffer_.memory.get(); }

 private:
  core::ScratchPool* const pool_;
  core::ScratchPool::Buffer buffer_;
};

}  // namespace horon::ops
