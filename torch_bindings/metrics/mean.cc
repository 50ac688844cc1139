#include "horon/torch_bindings/metrics/mean.h"

#include <cmath>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/metrics/checks.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::metrics {
namespace {

using core::concat;

// 0/0 is NaN, as it should be.
at::Tensor quotient(const MetricTotals& totals) {
  return totals.sums[0] / totals.counts[0].to(at::kDouble);
}

// Prediction - target in float64, and the number of elements beside it.
at::Tensor errors_of(const at::Tensor& predictions, const at::Tensor& targets, MetricState& state,
                     std::string_view metric) {
  require(predictions.sizes() == targets.sizes(), metric,
          concat("predictions have the shape ", core::shape_text(predictions.sizes()),
                 " and targets ", core::shape_text(targets.sizes()), "; give both the same"));
  require(!predictions.is_complex() && !targets.is_complex(), metric,
          "complex numbers are not supported");
  state.counts = at::full({1}, predictions.numel(), predictions.options().dtype(at::kLong));
  return predictions.to(at::kDouble) - targets.to(at::kDouble);
}

}  // namespace

MetricState Mean::state_of(const at::Tensor& values, double weight) const {
  require(std::isfinite(weight) && weight >= 0, "mean",
          concat("the weight is ", weight, "; give the number of samples"));
  MetricState batch = empty_state();
  const at::Tensor sum = values.detach().to(at::kDouble).sum();
  const auto count = static_cast<double>(values.numel());
  // A weight of 0 removes a NaN too: this batch has no samples.
  batch.sums = weight == 0 ? at::zeros({2}, sum.options())
                           : at::stack({sum * weight, at::full({}, weight * count, sum.options())});
  return batch;
}

void Mean::update(const at::Tensor& values, double weight) {
  const torch_detail::PlainMode plain;
  merge(state_of(values, weight));
}

void Mean::update(double value, double weight) { update(number(value), weight); }

void Mean::update(const at::Tensor& values, const at::Tensor& weights) {
  const torch_detail::PlainMode plain;
  require(values.sizes() == weights.sizes(), "mean",
          concat("values have the shape ", core::shape_text(values.sizes()), " and weights ",
                 core::shape_text(weights.sizes()), "; give both the same"));
  MetricState batch = empty_state();
  const at::Tensor each = weights.detach().to(at::kDouble);
  // A weight of 0 removes a NaN here too: padding, say.
  const at::Tensor weighted = values.detach().to(at::kDouble) * each;
  batch.sums = at::stack({weighted.masked_fill(each.eq(0), 0).sum(), each.sum()});
  merge(std::move(batch));
}

BatchValue Mean::forward(const at::Tensor& values, double weight) {
  const torch_detail::PlainMode plain;
  return merge_and_value(state_of(values, weight));
}

at::Tensor Mean::value_of(const MetricTotals& totals) const {
  return totals.sums[0] / totals.sums[1];
}

at::Tensor Mean::weight_of(const MetricTotals& totals) const { return totals.sums[1].clone(); }

std::string MeanSquaredError::description() const {
  return root_ ? "root of the mean squared error" : "mean squared error";
}

void MeanSquaredError::add_batch(MetricState& state, const at::Tensor& predictions,
                                 const at::Tensor& targets) const {
  const at::Tensor errors = errors_of(predictions, targets, state, description());
  state.sums = errors.square().sum().reshape({1});
}

at::Tensor MeanSquaredError::value_of(const MetricTotals& totals) const {
  return root_ ? quotient(totals).sqrt() : quotient(totals);
}

at::Tensor MeanSquaredError::weight_of(const MetricTotals& totals) const {
  return root_ ? at::Tensor() : totals.counts[0].to(at::kDouble);
}

void MeanAbsoluteError::add_batch(MetricState& state, const at::Tensor& predictions,
                                  const at::Tensor& targets) const {
  const at::Tensor errors = errors_of(predictions, targets, state, description());
  state.sums = errors.abs().sum().reshape({1});
}

at::Tensor MeanAbsoluteError::value_of(const MetricTotals& totals) const {
  return quotient(totals);
}

at::Tensor MeanAbsoluteError::weight_of(const MetricTotals& totals) const {
  return totals.counts[0].to(at::kDouble);
}

}  // namespace horon::metrics
