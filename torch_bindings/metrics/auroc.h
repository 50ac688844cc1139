// Area under the ROC curve, exact: the probability that a positive sample has a greater score than
// a negative one, where a tie counts half.
//
//   horon::metrics::Auroc auroc;
//   auroc.update(predictions, targets);  // both [n]; probabilities or logits; targets 0 or 1
//
// All scores are kept, in host memory, so update() waits for a GPU, and compute() brings the scores
// of all ranks to all ranks: 8 bytes for each, for 10 million samples 80 MB.
//
// More than two classes: scores [n, classes], each class against the rest. An area is NaN if there
// are no positive or no negative samples, or a score is NaN. Averages leave out classes without
// positive or without negative samples, and are NaN if none is left.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/metric.h"

namespace horon::metrics {

struct AurocOptions {
  int64_t classes = 2;
  Average average = Average::Macro;           // Macro, Weighted (by positive samples) or PerClass
  std::optional<int64_t> ignore_target = {};  // targets that don't count, as -100
};

class Auroc : public PredictionMetric {
 public:
  explicit Auroc(const AurocOptions& options = {});
  std::string description() const override;

 private:
  void add_batch(MetricState& state, const at::Tensor& predictions,
                 const at::Tensor& targets) const override;
  at::Tensor value_of(const MetricTotals& totals) const override;

  AurocOptions options_;
};

}  // namespace horon::metrics
