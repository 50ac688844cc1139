#include "horon/torch_bindings/metrics/labels.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::metrics {
namespace {

using core::concat;

[[noreturn]] void refuse_shapes(const at::Tensor& predictions, const at::Tensor& targets,
                                const LabelRules& rules, std::string_view metric) {
  throw Error(
      ErrorCode::InvalidArgument,
      concat(metric, ": predictions are ", predictions.scalar_type(), " ",
             core::shape_text(predictions.sizes()), " and targets ", targets.scalar_type(), " ",
             core::shape_text(targets.sizes()),
             "; give targets [n, ...] of integers, and scores [n, ", rules.classes, ", ...]",
             rules.classes == 2 ? ", scores of class 1 [n, ...]" : "", " or labels [n, ...]"));
}

bool has_scores_of_classes(const at::Tensor& predictions, const at::Tensor& targets,
                           const LabelRules& rules) {
  if (!predictions.is_floating_point() || predictions.dim() != targets.dim() + 1) return false;
  if (targets.dim() == 0 || predictions.size(1) != rules.classes) return false;
  return predictions.size(0) == targets.size(0) &&
         predictions.sizes().slice(2) == targets.sizes().slice(1);
}

at::Tensor none_like(const at::Tensor& labels, int64_t classes) {
  return at::full_like(labels, classes);
}

// Is the target among the k greatest scores? Of equal scores the first ones come first, as in
// argmax().
at::Tensor among_first(const at::Tensor& scores, const at::Tensor& target, int64_t k) {
  const at::Tensor index = at::arange(scores.size(1), target.options());
  const at::Tensor column = target.clamp(0, scores.size(1) - 1).unsqueeze(1);
  const at::Tensor own = scores.gather(1, column);
  const at::Tensor before = scores.gt(own).logical_or(scores.eq(own).logical_and(index.lt(column)));
  return before.sum(1).lt(k);
}

}  // namespace

at::Tensor rows_of_scores(const at::Tensor& scores) {
  return scores.movedim(1, -1).reshape({-1, scores.size(1)});
}

at::Tensor occurrences(const at::Tensor& labels, int64_t count) {
  const at::Tensor all = at::zeros({count + 1}, labels.options());
  return all.scatter_add(0, labels, at::ones_like(labels)).narrow(0, 0, count);
}

Targets targets_of(const at::Tensor& targets, const LabelRules& rules, std::string_view metric) {
  if (!at::isIntegralType(targets.scalar_type(), true)) {
    throw Error(ErrorCode::InvalidArgument, concat(metric, ": targets are ", targets.scalar_type(),
                                                   "; give the number of the class, an integer"));
  }
  const at::Tensor given = targets.reshape({-1}).to(at::kLong);
  at::Tensor bad = given.lt(0).logical_or(given.ge(rules.classes));
  at::Tensor none = bad;
  if (rules.ignore_target) {
    const at::Tensor ignored = given.eq(*rules.ignore_target);
    none = bad.logical_or(ignored);
    bad = bad.logical_and(ignored.logical_not());
  }
  return {at::where(none, none_like(given, rules.classes), given), bad};
}

Labels labels_of(const at::Tensor& predictions, const at::Tensor& targets, const LabelRules& rules,
                 std::string_view metric) {
  auto [target, bad] = targets_of(targets, rules, metric);
  const at::Tensor none = none_like(target, rules.classes);
  at::Tensor guess, hit;
  if (has_scores_of_classes(predictions, targets, rules)) {
    const at::Tensor scores = rows_of_scores(predictions);
    const at::Tensor nan = scores.isnan().any(1);
    guess = at::where(nan, none, scores.argmax(1));
    hit = among_first(scores, target, rules.top_k).logical_and(nan.logical_not());
  } else if (predictions.sizes() != targets.sizes() || rules.top_k != 1) {
    refuse_shapes(predictions, targets, rules, metric);
  } else if (predictions.is_floating_point()) {
    if (rules.classes != 2) refuse_shapes(predictions, targets, rules, metric);
    const at::Tensor scores = predictions.reshape({-1});
    guess = at::where(scores.isnan(), none, scores.gt(rules.threshold).to(at::kLong));
  } else if (at::isIntegralType(predictions.scalar_type(), true)) {
    guess = predictions.reshape({-1}).to(at::kLong);
    const at::Tensor wrong = guess.lt(0).logical_or(guess.ge(rules.classes));
    bad = bad.logical_or(wrong.logical_and(target.ne(none)));
    guess = at::where(wrong, none, guess);
  } else {
    refuse_shapes(predictions, targets, rules, metric);
  }
  target = at::where(bad, none, target);
  guess = at::where(bad.logical_or(target.eq(none)), none, guess);
  if (!hit.defined()) hit = guess.eq(target);
  hit = at::where(hit, target, none);
  return {target, guess, hit, bad, bad.sum().reshape({1})};
}

void require_labels_in_range(int64_t left_out, int64_t classes, std::string_view or_else) {
  if (left_out == 0) return;
  throw Error(ErrorCode::InvalidArgument,
              concat(left_out, left_out == 1 ? " sample has" : " samples have",
                     " a target or a prediction outside 0 to ", classes - 1, or_else,
                     "; give the right number of classes, or ignore_target for those that should "
                     "not count"));
}

}  // namespace horon::metrics
