// In which order an allreduce by Adasum combines the vectors of the ranks, of whatever type.
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

namespace horon::test {

// Neighbours first. Of a number of ranks that is no power of two, the last ones go into the first
// before. combine(a, b): that of the lower rank is a.
template <class Vector, class Combine>
Vector combined_as_by_adasum(std::vector<Vector> ranks, const Combine& combine) {
  const size_t paired = std::bit_floor(ranks.size());
  for (size_t extra = paired; extra < ranks.size(); ++extra) {
    ranks[extra - paired] = combine(ranks[extra - paired], ranks[extra]);
  }
  for (size_t distance = 1; distance < paired; distance *= 2) {
    for (size_t rank = 0; rank < paired; rank += 2 * distance) {
      ranks[rank] = combine(ranks[rank], ranks[rank + distance]);
    }
  }
  return ranks.front();
}

}  // namespace horon::test
