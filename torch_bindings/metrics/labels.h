// From scores and targets to class labels, as all classification metrics see them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace horon::metrics {

struct LabelRules {
  int64_t classes = 2;
  double threshold = 0.5;
  int64_t top_k = 1;
  std::optional<int64_t> ignore_target = {};
};

// Int64 [n], n being the samples that count, on the device of the targets. A label is in
// [0, classes]; `classes` stands for "none".
struct Labels {
  at::Tensor target;
  at::Tensor guess;     // none where a score is NaN
  at::Tensor hit;       // the target, or none where the guess (or the first k) missed it
  at::Tensor bad;       // bool [n]: target or guess is out of range; all labels are none there
  at::Tensor left_out;  // int64 [1]: how many are bad
};

// Predictions are one of
//  - scores, floating [n, classes, ...], the greatest of which wins, the first of equal ones;
//  - two classes: a score of class 1, floating [n, ...], which wins above the threshold;
//  - labels, integer or bool [n, ...].
// Targets: integer or bool [n, ...]. Those equal to `ignore_target` have the label "none" and don't
// count. Throws Error(InvalidArgument) that begins with `metric` for other shapes and dtypes.
Labels labels_of(const at::Tensor& predictions, const at::Tensor& targets, const LabelRules& rules,
                 std::string_view metric);

// Targets as int64 [n], `classes` where they don't count; `bad` as above.
struct Targets {
  at::Tensor label;
  at::Tensor bad;
};
Targets targets_of(const at::Tensor& targets, const LabelRules& rules, std::string_view metric);

// How often each of [0, count) is there: int64 [count]. Labels are in [0, count].
at::Tensor occurrences(const at::Tensor& labels, int64_t count);

// [n, classes, ...] as [all samples, classes].
at::Tensor rows_of_scores(const at::Tensor& scores);

// Throws Error(InvalidArgument) if `left_out` is not 0. `or_else`: what else may be the matter with
// these samples.
void require_labels_in_range(int64_t left_out, int64_t classes, std::string_view or_else = "");

}  // namespace horon::metrics
