// Perplexity of a language model: exp of the mean negative log likelihood of the tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "horon/torch_bindings/metrics/metric.h"

namespace horon::metrics {

struct PerplexityOptions {
  std::optional<int64_t> ignore_target = {};  // tokens that don't count (padding): -100, say
};

// Predictions: logits, floating [..., vocabulary], softmax being taken here, in float32 for 16-bit
// types. Targets: integers [...]. Without tokens the value is NaN. A target out of the vocabulary
// is an error of compute(), on all ranks.
class Perplexity : public PredictionMetric {
 public:
  explicit Perplexity(const PerplexityOptions& options = {})
      : PredictionMetric(1, 2), options_(options) {}
  std::string description() const override;

 private:
  void add_batch(MetricState& state, const at::Tensor& predictions,
                 const at::Tensor& targets) const override;
  at::Tensor value_of(const MetricTotals& totals) const override;

  PerplexityOptions options_;
};

}  // namespace horon::metrics
