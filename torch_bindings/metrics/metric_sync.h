// The state of several metrics over all ranks, in one call.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/metrics/metric.h"

namespace horon::metrics {

class MetricSync {
 public:
  struct Named {
    std::string name;  // in a collection; empty: a metric by itself
    const Metric* metric;
  };

  static MetricTotals totals_of(const MetricState& state);

  // The value of each metric over all ranks. All sums and counts travel in one allreduce. If any
  // metric has lists, one allgather of all lists runs beside it. Throws Error as collectives do,
  // and what value_of() throws, on all ranks, with the metric's name before it.
  static std::vector<at::Tensor> compute(const std::vector<Named>& metrics,
                                         const MetricOptions& options);

 private:
  static at::Tensor value_of(const Named& named, const MetricTotals& totals);
};

}  // namespace horon::metrics
