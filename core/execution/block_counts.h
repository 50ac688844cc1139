// How many elements a collective moves to or from each member. Batches that come again share the
// numbers: a copy of them allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace horon::core {

class BlockCounts {
 public:
  BlockCounts() = default;
  BlockCounts(std::vector<int64_t> counts)
      : counts_(std::make_shared<const std::vector<int64_t>>(std::move(counts))) {}

  bool empty() const { return size() == 0; }
  size_t size() const { return counts_ == nullptr ? 0 : counts_->size(); }
  int64_t operator[](size_t member) const { return (*counts_)[member]; }
  const int64_t* begin() const { return counts_ == nullptr ? nullptr : counts_->data(); }
  const int64_t* end() const { return begin() + size(); }
  operator std::span<const int64_t>() const { return {begin(), size()}; }

 private:
  std::shared_ptr<const std::vector<int64_t>> counts_;  // null: none
};

}  // namespace horon::core
