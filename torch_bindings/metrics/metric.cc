#include "horon/torch_bindings/metrics/metric.h"

#include <utility>

#include <ATen/ops/zeros.h>

#include "horon/torch_bindings/metrics/metric_sync.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::metrics {
namespace {

// The sum of both, on the device of the batch: adding up there waits for nothing.
void add_to(at::Tensor& total, const at::Tensor& batch) {
  if (total.device() != batch.device()) total = total.to(batch.device());
  total.add_(batch);
}

}  // namespace

Metric::Metric(int64_t sums, int64_t counts, size_t lists)
    : sums_(sums), counts_(counts), lists_(lists), state_(empty_state()) {}

MetricState Metric::empty_state() const {
  const torch_detail::PlainMode plain;
  return {at::zeros({sums_}, at::kDouble), at::zeros({counts_}, at::kLong),
          std::vector<std::vector<at::Tensor>>(lists_)};
}

void Metric::reset() { state_ = empty_state(); }

at::Tensor Metric::weight_of(const MetricTotals&) const { return {}; }

void Metric::merge(MetricState batch) {
  const torch_detail::PlainMode plain;
  add_to(state_.sums, batch.sums);
  add_to(state_.counts, batch.counts);
  for (size_t i = 0; i < lists_; ++i) {
    for (at::Tensor& part : batch.lists[i]) state_.lists[i].push_back(std::move(part));
  }
}

BatchValue Metric::merge_and_value(MetricState batch) {
  const torch_detail::PlainMode plain;
  const MetricTotals totals = MetricSync::totals_of(batch);
  BatchValue of_batch{value_of(totals), weight_of(totals)};  // or it throws: then nothing is added
  merge(std::move(batch));
  return of_batch;
}

at::Tensor Metric::compute_local() const {
  const torch_detail::PlainMode plain;
  return value_of(MetricSync::totals_of(state_));
}

at::Tensor Metric::compute(const MetricOptions& options) const {
  return MetricSync::compute({{"", this}}, options).front();
}

MetricState PredictionMetric::state_of(const at::Tensor& predictions,
                                       const at::Tensor& targets) const {
  const torch_detail::PlainMode plain;
  MetricState batch = empty_state();
  add_batch(batch, predictions.detach(), targets.detach());
  return batch;
}

void PredictionMetric::update(const at::Tensor& predictions, const at::Tensor& targets) {
  merge(state_of(predictions, targets));
}

BatchValue PredictionMetric::forward(const at::Tensor& predictions, const at::Tensor& targets) {
  return merge_and_value(state_of(predictions, targets));
}

}  // namespace horon::metrics
