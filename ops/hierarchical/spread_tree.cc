#include "horon/ops/hierarchical/spread_tree.h"

#include <algorithm>

namespace horon::ops {
namespace {

// What a cable carries while a message is on its way from one rank to the next.
constexpr int64_t kHopBytes = 64 << 10;

// Hops from the source to the last host.
int64_t depth(int hosts, int fan_out) {
  int64_t hops = 0;
  int64_t reached = 1;
  for (int64_t level = 1; reached < hosts; ++hops) {
    level *= fan_out;
    reached += level;
  }
  return hops;
}

}  // namespace

// In bytes on a wire: the first chunk goes to the last host, and the others follow it.
int fan_out_of(int hosts, int64_t bytes, int64_t chunk_bytes) {
  const int64_t first = std::min(bytes, chunk_bytes);
  int best = 1;
  int64_t best_cost = 0;
  for (int fan_out = 1; fan_out < hosts; ++fan_out) {
    const int64_t cost =
        (bytes - first) * fan_out + depth(hosts, fan_out) * (first * fan_out + kHopBytes);
    if (fan_out > 1 && cost >= best_cost) continue;
    best = fan_out;
    best_cost = cost;
  }
  return best;
}

}  // namespace horon::ops
