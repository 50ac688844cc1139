#include "horon/core/tuning/expected_improvement.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace horon::core {

double expected_improvement(const Belief& belief, double best) {
  const double gain = best - belief.mean;
  if (belief.deviation <= 0) return std::max(0.0, gain);
  const double z = gain / belief.deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  const double probability = std::erfc(-z / std::numbers::sqrt2) / 2;
  return gain * probability + belief.deviation * density;
}

}  // namespace horon::core
