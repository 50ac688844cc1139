#include "horon/torch_bindings/metrics/perplexity.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/metrics/checks.h"
#include "horon/torch_bindings/metrics/labels.h"

namespace horon::metrics {

std::string Perplexity::description() const {
  return options_.ignore_target
             ? core::concat("perplexity, without target ", *options_.ignore_target)
             : "perplexity";
}

void Perplexity::add_batch(MetricState& state, const at::Tensor& predictions,
                           const at::Tensor& targets) const {
  const int64_t dims = predictions.dim();
  require(predictions.is_floating_point() && dims == targets.dim() + 1 &&
              predictions.sizes().slice(0, static_cast<size_t>(dims - 1)) == targets.sizes(),
          "perplexity",
          core::concat("predictions are ", predictions.scalar_type(), " ",
                       core::shape_text(predictions.sizes()), " and targets have the shape ",
                       core::shape_text(targets.sizes()),
                       "; give logits [..., vocabulary] and targets [...]"));
  const int64_t words = predictions.size(dims - 1);
  require(words > 0, "perplexity", "the vocabulary (last dimension of the predictions) is 0");
  const Targets tokens = targets_of(
      targets, {.classes = words, .ignore_target = options_.ignore_target}, "perplexity");
  const at::Tensor counted = tokens.label.ne(words);
  const at::ScalarType type = predictions.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor likelihood = at::log_softmax(predictions.reshape({-1, words}), 1, type)
                                    .gather(1, tokens.label.clamp_max(words - 1).unsqueeze(1))
                                    .squeeze(1);
  state.sums = likelihood.masked_fill(counted.logical_not(), 0).to(at::kDouble).sum().neg();
  state.sums = state.sums.reshape({1});
  state.counts = at::stack({counted.sum(), tokens.bad.sum()});
}

at::Tensor Perplexity::value_of(const MetricTotals& totals) const {
  if (totals.counts[1].item<int64_t>() != 0) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat(totals.counts[1].item<int64_t>(),
                             " targets are not in the vocabulary; give ignore_target for those "
                             "that should not count"));
  }
  return (totals.sums[0] / totals.counts[0].to(at::kDouble)).exp();
}

}  // namespace horon::metrics
