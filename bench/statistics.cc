#include "horon/bench/statistics.h"

#include <algorithm>
#include <cmath>

#include "horon/core/base/error.h"

namespace horon::bench {

double percentile(std::vector<double> samples, double percent) {
  HORON_CHECK(!samples.empty(), "a percentile of nothing");
  std::sort(samples.begin(), samples.end());
  const double place = std::ceil(percent / 100.0 * static_cast<double>(samples.size()));
  const auto index = static_cast<size_t>(std::max(place, 1.0)) - 1;
  return samples[std::min(index, samples.size() - 1)];
}

double median(std::vector<double> samples) {
  HORON_CHECK(!samples.empty(), "a median of nothing");
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  if (samples.size() % 2 == 1) return samples[middle];
  return (samples[middle - 1] + samples[middle]) / 2;
}

Quartiles quartiles(std::vector<double> samples) {
  HORON_CHECK(!samples.empty(), "quartiles of nothing");
  std::sort(samples.begin(), samples.end());
  const auto at_share = [&samples](double share) {
    const double place = share * static_cast<double>(samples.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, samples.size() - 1);
    return std::lerp(samples[below], samples[above], place - static_cast<double>(below));
  };
  return {at_share(0.25), at_share(0.5), at_share(0.75)};
}

}  // namespace horon::bench
