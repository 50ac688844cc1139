// Means over samples: of anything (a loss), of squared and of absolute errors.
//
//   horon::metrics::Mean loss;
//   loss.update(batch_loss, batch_size);            // the mean of a batch counts for its samples
//   horon::metrics::MeanSquaredError error;
//   error.update(predictions, targets);             // each element is a sample
//
// Without samples, or if all weights are 0, the value is NaN. A NaN or an infinity among the values
// makes the mean one: it is not hidden.
#pragma once

#include <string>

#include "horon/torch_bindings/metrics/metric.h"

namespace horon::metrics {

// sum of weight * value / sum of weights.
class Mean : public Metric {
 public:
  Mean() : Metric(2, 0) {}

  // Each element counts with this weight: the number of samples that it is the mean of. Throws
  // Error(InvalidArgument) for a weight that is negative or not finite.
  void update(const at::Tensor& values, double weight = 1);
  void update(double value, double weight = 1);
  // A weight for each element; of the shape of the values. Where it is 0 the value does not count,
  // whatever it is.
  void update(const at::Tensor& values, const at::Tensor& weights);
  BatchValue forward(const at::Tensor& values, double weight = 1);

  std::string description() const override { return "mean"; }

 private:
  MetricState state_of(const at::Tensor& values, double weight) const;
  at::Tensor value_of(const MetricTotals& totals) const override;
  at::Tensor weight_of(const MetricTotals& totals) const override;
};

struct SquaredErrorOptions {
  bool root = false;  // the square root of the mean: RMSE
};

// Mean of (prediction - target)^2 over all elements; the two have the same shape.
class MeanSquaredError : public PredictionMetric {
 public:
  explicit MeanSquaredError(const SquaredErrorOptions& options = {})
      : PredictionMetric(1, 1), root_(options.root) {}
  std::string description() const override;

 private:
  void add_batch(MetricState& state, const at::Tensor& predictions,
                 const at::Tensor& targets) const override;
  at::Tensor value_of(const MetricTotals& totals) const override;
  at::Tensor weight_of(const MetricTotals& totals) const override;

  bool root_;
};

// Mean of |prediction - target|.
class MeanAbsoluteError : public PredictionMetric {
 public:
  MeanAbsoluteError() : PredictionMetric(1, 1) {}
  std::string description() const override { return "mean absolute error"; }

 private:
  void add_batch(MetricState& state, const at::Tensor& predictions,
                 const at::Tensor& targets) const override;
  at::Tensor value_of(const MetricTotals& totals) const override;
  at::Tensor weight_of(const MetricTotals& totals) const override;
};

}  // namespace horon::metrics
