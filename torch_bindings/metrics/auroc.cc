#include "horon/torch_bindings/metrics/auroc.h"

#include <ATen/ops/searchsorted.h>
#include <ATen/ops/stack.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/metrics/checks.h"
#include "horon/torch_bindings/metrics/labels.h"

namespace horon::metrics {
namespace {

constexpr std::string_view kAuroc = "AUROC";

// For each positive score: how many negative ones are below, and how many below or equal. Half of
// the sum counts each tie as a half. Integers, so the order of the samples means nothing.
at::Tensor area(const at::Tensor& positive, const at::Tensor& negative) {
  if (positive.numel() == 0 || negative.numel() == 0) return not_a_number();
  if (positive.isnan().any().item<bool>() || negative.isnan().any().item<bool>()) {
    return not_a_number();
  }
  const at::Tensor sorted = std::get<0>(negative.sort());
  const at::Tensor below = at::searchsorted(sorted, positive, false, false);
  const at::Tensor up_to = at::searchsorted(sorted, positive, false, true);
  const double pairs = static_cast<double>(positive.numel()) * static_cast<double>(sorted.numel());
  return (below.sum() + up_to.sum()).to(at::kDouble) / (2 * pairs);
}

// In host memory. What add_batch() selects of them is a copy: the program may reuse the batch.
at::Tensor kept(const at::Tensor& scores) {
  const at::ScalarType type = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return scores.to(at::kCPU, type).reshape({-1});
}

}  // namespace

Auroc::Auroc(const AurocOptions& options) : PredictionMetric(0, 1, 2), options_(options) {
  require(options.classes >= 2, kAuroc, "classes must be at least 2");
  require(options.average == Average::Macro || options.average == Average::Weighted ||
              options.average == Average::PerClass,
          kAuroc, "average must be Macro, Weighted or PerClass");
}

std::string Auroc::description() const {
  const char* const average = options_.average == Average::Macro      ? "macro"
                              : options_.average == Average::Weighted ? "weighted"
                                                                      : "per class";
  return core::concat(
      kAuroc, " of ", options_.classes, " classes, ", average,
      options_.ignore_target ? core::concat(", without target ", *options_.ignore_target) : "");
}

void Auroc::add_batch(MetricState& state, const at::Tensor& predictions,
                      const at::Tensor& targets) const {
  const bool binary = options_.classes == 2;
  const bool fits = binary ? predictions.sizes() == targets.sizes()
                           : predictions.dim() == 2 && targets.dim() == 1 &&
                                 predictions.size(0) == targets.size(0) &&
                                 predictions.size(1) == options_.classes;
  require(fits && predictions.is_floating_point(), kAuroc,
          core::concat("predictions are ", predictions.scalar_type(), " ",
                       core::shape_text(predictions.sizes()), " and targets have the shape ",
                       core::shape_text(targets.sizes()), "; give scores of a floating type, ",
                       binary ? "in the shape of the targets" : "[n, classes], and targets [n]"));
  const Targets labels =
      targets_of(targets.cpu(),
                 {.classes = options_.classes, .ignore_target = options_.ignore_target}, kAuroc);
  state.counts = labels.bad.sum().reshape({1});
  if (binary) {
    // Travels without labels: one list of positive, one of negative scores.
    const at::Tensor scores = kept(predictions);
    state.lists[0].push_back(scores.masked_select(labels.label.eq(1)));
    state.lists[1].push_back(scores.masked_select(labels.label.eq(0)));
  } else {
    const at::Tensor rows = kept(predictions).view({-1, options_.classes});
    const at::Tensor good = labels.label.ne(options_.classes);
    state.lists[0].push_back(rows.masked_select(good.unsqueeze(1)));
    state.lists[1].push_back(labels.label.masked_select(good));
  }
}

at::Tensor Auroc::value_of(const MetricTotals& totals) const {
  require_labels_in_range(totals.counts[0].item<int64_t>(), options_.classes);
  if (options_.classes == 2) return area(totals.lists[0], totals.lists[1]);
  const at::Tensor scores = totals.lists[0].view({-1, options_.classes});
  std::vector<at::Tensor> areas, weights;
  for (int64_t label = 0; label < options_.classes; ++label) {
    const at::Tensor positive = totals.lists[1].eq(label);
    const at::Tensor own = scores.select(1, label);
    areas.push_back(area(own.masked_select(positive), own.masked_select(positive.logical_not())));
    weights.push_back(positive.sum().to(at::kDouble));
  }
  const at::Tensor of_class = at::stack(areas);
  if (options_.average == Average::PerClass) return of_class;
  const at::Tensor positive = at::stack(weights);
  const at::Tensor defined =
      positive.gt(0).logical_and(positive.lt(static_cast<double>(scores.size(0))));
  const at::Tensor weight = options_.average == Average::Weighted
                                ? positive.masked_fill(defined.logical_not(), 0)
                                : defined.to(at::kDouble);
  // A NaN score makes the average NaN; a class without an area does not.
  return (of_class.masked_fill(defined.logical_not(), 0) * weight).sum() / weight.sum();
}

}  // namespace horon::metrics
