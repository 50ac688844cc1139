// Several metrics that are computed together: one allreduce brings the sums and counts of all of
// them to all ranks, whatever their number. (If an AUROC is among them, one allgather of its scores
// runs beside it.)
//
//   horon::metrics::MetricCollection metrics;
//   auto& loss = metrics.add("loss", horon::metrics::Mean());
//   metrics.add("accuracy", horon::metrics::Accuracy({.classes = 10}));
//   metrics.add("top 5", horon::metrics::Accuracy({.classes = 10, .top_k = 5}));
//   for (auto& batch : *loader) {
//     at::Tensor output = model->forward(batch.data);
//     metrics.update(output, batch.target);
//     loss.update(torch::cross_entropy_loss(output, batch.target), batch.target.size(0));
//   }
//   std::map<std::string, at::Tensor> values = metrics.compute();
#pragma once

#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "horon/torch_bindings/metrics/metric.h"

namespace horon::metrics {

// Owns its metrics. One thread at a time. All ranks add the same ones in the same order.
class MetricCollection {
 public:
  explicit MetricCollection(MetricOptions options = {}) : options_(std::move(options)) {}

  // The metric stays where it is as long as the collection lives. Throws Error(InvalidArgument) for
  // an empty name or one that is there already.
  template <class M>
  M& add(const std::string& name, M metric) {
    static_assert(std::is_base_of_v<Metric, M>, "give a metric");
    auto owned = std::make_unique<M>(std::move(metric));
    M& added = *owned;
    add_owned(name, std::move(owned));
    return added;
  }

  // Updates those that take predictions and targets; a Mean is updated by itself. Throws
  // Error(InvalidArgument), then none is updated.
  void update(const at::Tensor& predictions, const at::Tensor& targets);
  // The values of all by name, over all ranks. Collective. Errors as Metric::compute(), with the
  // name of the metric.
  std::map<std::string, at::Tensor> compute() const;
  // The same of this rank's samples. Local.
  std::map<std::string, at::Tensor> compute_local() const;
  void reset();

 private:
  void add_owned(const std::string& name, std::unique_ptr<Metric> metric);

  MetricOptions options_;
  std::vector<std::pair<std::string, std::unique_ptr<Metric>>> metrics_;
};

}  // namespace horon::metrics
