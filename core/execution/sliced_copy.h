// Copies in and out of a fusion buffer, a bounded piece with each step of the loop.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_domain.h"

namespace horon::core {

class SlicedCopy {
 public:
  // A copy of this size takes a fraction of a millisecond.
  static constexpr size_t kBytesPerStep = size_t{1} << 20;

  // Nothing to copy.
  SlicedCopy() = default;
  // Items are handed to the domain in their order. The domain must outlive the copy.
  SlicedCopy(MemoryDomain& domain, std::vector<CopyItem> items);

  // Hands over the next piece, or asks whether what was handed over has happened. Done, Advanced or
  // Polling. Throws what the domain throws.
  Progress step();

  // The domain may still be copying: keeps what it needs for that.
  void keep_pending();

 private:
  std::vector<CopyItem> next_slice();

  MemoryDomain* domain_ = nullptr;
  std::vector<CopyItem> items_;  // those before next_ have been handed over
  size_t next_ = 0;
  std::vector<std::unique_ptr<PendingCopy>> pending_;
};

}  // namespace horon::core
