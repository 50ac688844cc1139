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
  // and what value_of() throws, on all ranks, with the metric's name in front and the ranks whose
  // samples are at fault at the end.
  static std::vector<at::Tensor> compute(const std::vector<Named>& metrics,
                                         const MetricOptions& options);

 private:
  static at::Tensor value_of(const Named& named, const MetricTotals& totals);
  // Would the value of this rank's own samples be an error too?
  static bool fails_alone(const Metric& metric);
};

}  // namespace horon::metrics
