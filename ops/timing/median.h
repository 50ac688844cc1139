// The middle of some samples: what a few disturbed ones do not change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace horon::ops {

// For an even number of samples the upper one. There must be at least one sample.
inline double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace horon::ops
