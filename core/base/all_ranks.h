// The numbers of all ranks, or of all members of a set.
#pragma once

#include <cstddef>
#include <numeric>
#include <vector>

namespace horon::core {

// 0, 1, ... `size` - 1
inline std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace horon::core
