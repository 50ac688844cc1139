#include "horon/torch_bindings/metrics/metric_collection.h"

#include <algorithm>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/metrics/checks.h"
#include "horon/torch_bindings/metrics/metric_sync.h"

namespace horon::metrics {

void MetricCollection::add_owned(const std::string& name, std::unique_ptr<Metric> metric) {
  require(!name.empty(), "collection of metrics", "a metric needs a name");
  const bool known = std::any_of(metrics_.begin(), metrics_.end(),
                                 [&](const auto& other) { return other.first == name; });
  require(!known, "collection of metrics",
          core::concat("\"", name, "\" is in it already; give each metric its own name"));
  metrics_.emplace_back(name, std::move(metric));
}

void MetricCollection::update(const at::Tensor& predictions, const at::Tensor& targets) {
  std::vector<std::pair<PredictionMetric*, MetricState>> batches;
  for (const auto& [name, metric] : metrics_) {
    auto* const taker = dynamic_cast<PredictionMetric*>(metric.get());
    if (taker != nullptr) batches.emplace_back(taker, taker->state_of(predictions, targets));
  }
  for (auto& [taker, batch] : batches) taker->merge(std::move(batch));
}

std::map<std::string, at::Tensor> MetricCollection::compute() const {
  std::vector<MetricSync::Named> named;
  for (const auto& [name, metric] : metrics_) named.push_back({name, metric.get()});
  const std::vector<at::Tensor> values = MetricSync::compute(named, options_);
  std::map<std::string, at::Tensor> by_name;
  for (size_t i = 0; i < values.size(); ++i) by_name.emplace(named[i].name, values[i]);
  return by_name;
}

std::map<std::string, at::Tensor> MetricCollection::compute_local() const {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, metric] : metrics_) by_name.emplace(name, metric->compute_local());
  return by_name;
}

void MetricCollection::reset() {
  for (const auto& [name, metric] : metrics_) metric->reset();
}

}  // namespace horon::metrics
