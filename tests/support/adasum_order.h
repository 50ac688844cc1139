// The order in which an allreduce by Adasum combines the vectors of the ranks, whatever their type.
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

namespace horon::test {

// Neighbours combine first. If the number of ranks is no power of two, the last ranks are combined
// into the first ones before that. combine(a, b): `a` is the vector of the lower rank.
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
