#include "horon/torch_bindings/metrics/classification.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>

#include "horon/core/base/text.h"
#include "horon/torch_bindings/metrics/checks.h"
#include "horon/torch_bindings/metrics/labels.h"

namespace horon::metrics {
namespace {

using core::concat;

constexpr std::array<std::string_view, 4> kKinds = {"accuracy", "precision", "recall", "F-score"};
constexpr std::array<std::string_view, 5> kAverages = {"binary", "micro", "macro", "weighted",
                                                       "per class"};
constexpr std::array<std::string_view, 4> kNormalized = {"", ", by target", ", by guess",
                                                         ", by all"};

std::string ignored_text(const std::optional<int64_t>& ignored) {
  return ignored ? concat(", without target ", *ignored) : "";
}

}  // namespace

ClassRatio::ClassRatio(Kind kind, const ClassificationOptions& options)
    : PredictionMetric(0, 3 * std::max<int64_t>(options.classes, 0) + 1),
      kind_(kind),
      options_(options) {
  const std::string_view name = kKinds.at(static_cast<size_t>(kind));
  require(options.classes >= 2, name, "classes must be at least 2");
  require(options.average != Average::Binary || options.classes == 2, name,
          "Average::Binary needs classes = 2; give Micro, Macro, Weighted or PerClass");
  require(options.top_k == 1 || kind == Kind::Accuracy, name, "only accuracy has top_k");
  require(options.top_k >= 1 && options.top_k <= options.classes, name,
          "top_k must be from 1 to the number of classes");
  require(options.beta > 0 && std::isfinite(options.beta), name, "beta must be a positive number");
  require(options.beta == 1 || kind == Kind::FScore, name, "only the F-score has beta");
}

std::string ClassRatio::description() const {
  std::string text = concat(kKinds.at(static_cast<size_t>(kind_)), " of ", options_.classes,
                            " classes, ", kAverages.at(static_cast<size_t>(options_.average)));
  if (options_.top_k != 1) text += concat(", top ", options_.top_k);
  if (options_.threshold != 0.5)
    text += concat(", threshold ", core::real_text(options_.threshold));
  if (options_.beta != 1) text += concat(", beta ", core::real_text(options_.beta));
  if (options_.zero_division != 0)
    text += concat(", 0/0 is ", core::real_text(options_.zero_division));
  return text + ignored_text(options_.ignore_target);
}

void ClassRatio::add_batch(MetricState& state, const at::Tensor& predictions,
                           const at::Tensor& targets) const {
  const Labels labels = labels_of(predictions, targets,
                                  {.classes = options_.classes,
                                   .threshold = options_.threshold,
                                   .top_k = options_.top_k,
                                   .ignore_target = options_.ignore_target},
                                  kKinds.at(static_cast<size_t>(kind_)));
  const auto count = [&](const at::Tensor& of) { return occurrences(of, options_.classes); };
  state.counts =
      at::cat({count(labels.hit), count(labels.guess), count(labels.target), labels.left_out});
  state.sums = state.sums.to(state.counts.device());
}

at::Tensor ClassRatio::ratio(const at::Tensor& hits, const at::Tensor& guessed,
                             const at::Tensor& actual) const {
  at::Tensor above = hits.to(at::kDouble), below = actual.to(at::kDouble);
  if (kind_ == Kind::Precision) below = guessed.to(at::kDouble);
  if (kind_ == Kind::FScore) {
    const double square = options_.beta * options_.beta;
    above = above * (1 + square);
    below = below * square + guessed;
  }
  return at::where(below.eq(0), number(options_.zero_division), above / below);
}

bool ClassRatio::adds_up_classes() const {
  return options_.average == Average::Micro ||
         (options_.average == Average::Binary && kind_ == Kind::Accuracy);
}

at::Tensor ClassRatio::weight_of(const MetricTotals& totals) const {
  if (kind_ != Kind::Accuracy || !adds_up_classes()) return {};
  return totals.counts.narrow(0, 2 * options_.classes, options_.classes).sum().to(at::kDouble);
}

at::Tensor ClassRatio::value_of(const MetricTotals& totals) const {
  const int64_t classes = options_.classes;
  require_labels_in_range(totals.counts[3 * classes].item<int64_t>(), classes);
  const at::Tensor hits = totals.counts.narrow(0, 0, classes);
  const at::Tensor guessed = totals.counts.narrow(0, classes, classes);
  const at::Tensor actual = totals.counts.narrow(0, 2 * classes, classes);
  if (actual.sum().item<int64_t>() == 0) {
    return options_.average == Average::PerClass ? not_a_number().repeat({classes})
                                                 : not_a_number();
  }
  if (adds_up_classes()) return ratio(hits.sum(), guessed.sum(), actual.sum());
  const at::Tensor of_class = ratio(hits, guessed, actual);
  if (options_.average == Average::PerClass) return of_class;
  if (options_.average == Average::Binary) return of_class[1].clone();
  at::Tensor weights = actual.to(at::kDouble);
  if (options_.average == Average::Macro) {
    weights = (options_.top_k == 1 ? guessed + actual : actual).gt(0).to(at::kDouble);
  }
  weights = weights.masked_fill(of_class.isnan(), 0);
  return (of_class.nan_to_num(0) * weights).sum() / weights.sum();
}

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options)
    : PredictionMetric(0, options.classes * options.classes + 1), options_(options) {
  require(options.classes >= 2, "confusion matrix", "classes must be at least 2");
}

std::string ConfusionMatrix::description() const {
  return concat(
      "confusion matrix of ", options_.classes, " classes",
      kNormalized.at(static_cast<size_t>(options_.normalize)),
      options_.threshold != 0.5 ? concat(", threshold ", core::real_text(options_.threshold)) : "",
      ignored_text(options_.ignore_target));
}

void ConfusionMatrix::add_batch(MetricState& state, const at::Tensor& predictions,
                                const at::Tensor& targets) const {
  const int64_t classes = options_.classes, cells = classes * classes;
  const Labels labels = labels_of(predictions, targets,
                                  {.classes = classes,
                                   .threshold = options_.threshold,
                                   .ignore_target = options_.ignore_target},
                                  "confusion matrix");
  const at::Tensor counted = labels.target.ne(classes);
  const at::Tensor unknown = counted.logical_and(labels.guess.eq(classes));
  const at::Tensor cell = at::where(counted.logical_and(unknown.logical_not()),
                                    labels.target * classes + labels.guess, cells);
  state.counts = at::cat({occurrences(cell, cells), labels.left_out + unknown.sum()});
  state.sums = state.sums.to(state.counts.device());
}

at::Tensor ConfusionMatrix::value_of(const MetricTotals& totals) const {
  const int64_t classes = options_.classes;
  require_labels_in_range(totals.counts[classes * classes].item<int64_t>(), classes,
                          ", or a NaN among its scores");
  const at::Tensor matrix = totals.counts.narrow(0, 0, classes * classes).view({classes, classes});
  if (options_.normalize == Normalize::None) return matrix.clone();
  const at::Tensor cells = matrix.to(at::kDouble);
  at::Tensor all = cells.sum();
  if (options_.normalize == Normalize::ByTarget) all = cells.sum(1, true);
  if (options_.normalize == Normalize::ByGuess) all = cells.sum(0, true);
  return at::where(all.eq(0), number(0), cells / all);
}

}  // namespace horon::metrics
