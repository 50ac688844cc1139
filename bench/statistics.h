// Medians and percentiles of samples.
#pragma once

#include <vector>

namespace horon::bench {

// The sample below which `percent` of all samples lie (nearest rank; of an even number the median
// is the mean of the middle two). At least one sample.
double percentile(std::vector<double> samples, double percent);
double median(std::vector<double> samples);

}  // namespace horon::bench
