// Medians, quartiles and percentiles of samples.
#pragma once

#include <vector>

namespace horon::bench {

// percentile(): the sample below which `percent` of all samples lie (nearest rank). median(): of an
// even number of samples the mean of the middle two. There must be at least one sample.
double percentile(std::vector<double> samples, double percent);
double median(std::vector<double> samples);

// Between two samples the value is interpolated, as Python's statistics.quantiles() does with
// method="inclusive". There must be at least one sample.
struct Quartiles {
  double lower = 0;
  double median = 0;
  double upper = 0;
};
Quartiles quartiles(std::vector<double> samples);

}  // namespace horon::bench
