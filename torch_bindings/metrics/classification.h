// Accuracy, precision, recall, F-score and the confusion matrix. What predictions and targets may
// be: labels.h.
//
// For each class the ranks add up, in int64, how many samples are of it (a), how many were
// predicted as it (g), and how many of these rightly (h); so the values of N ranks are those of one
// process to the last bit.
//
//   recall = h / a     precision = h / g     F = (1 + b^2) h / (b^2 a + g)     accuracy = sum h / n
//
// A sample with a NaN among its scores is predicted as no class: a miss.
//
// Undefined values: without any sample the value is NaN. 0/0 of a class (nothing was predicted as
// it, say) is `zero_division`. A class without any target or prediction (with top_k above 1:
// without any target) does not count in the macro average, and is `zero_division` in PerClass. If
// `zero_division` is NaN, classes of 0/0 don't count in averages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "horon/torch_bindings/metrics/metric.h"

namespace horon::metrics {

enum class Average : uint8_t {
  Binary,    // two classes: the value of class 1. Accuracy: as Micro
  Micro,     // from the sums over all classes: all four are the accuracy, unless a score is NaN
             // (such a sample is in a, but in no g)
  Macro,     // the mean over classes
  Weighted,  // the same, weighted by the samples of each class
  PerClass,  // none: float64 [classes]
};

struct ClassificationOptions {
  int64_t classes = 2;
  Average average = Average::Micro;
  double threshold = 0.5;  // of binary scores: 0.5 for probabilities, 0 for logits
  double zero_division = 0;
  std::optional<int64_t> ignore_target = {};  // targets that don't count, as -100
  int64_t top_k = 1;  // Accuracy of scores: the target is among the k greatest ones
  double beta = 1;    // FScore: recall counts beta times as much as precision
};

// What the four have in common.
class ClassRatio : public PredictionMetric {
 public:
  std::string description() const override;

 protected:
  enum class Kind : uint8_t { Accuracy, Precision, Recall, FScore };
  ClassRatio(Kind kind, const ClassificationOptions& options);  // throws Error(InvalidArgument)

 private:
  void add_batch(MetricState& state, const at::Tensor& predictions,
                 const at::Tensor& targets) const override;
  at::Tensor value_of(const MetricTotals& totals) const override;
  at::Tensor weight_of(const MetricTotals& totals) const override;
  at::Tensor ratio(const at::Tensor& hits, const at::Tensor& guessed,
                   const at::Tensor& actual) const;
  bool adds_up_classes() const;

  Kind kind_;
  ClassificationOptions options_;
};

// Micro and Binary: rightly predicted samples / samples. Macro and PerClass: from the recalls;
// Macro is the balanced accuracy if each class has samples.
class Accuracy : public ClassRatio {
 public:
  explicit Accuracy(const ClassificationOptions& options = {})
      : ClassRatio(Kind::Accuracy, options) {}
};

class Precision : public ClassRatio {
 public:
  explicit Precision(const ClassificationOptions& options = {})
      : ClassRatio(Kind::Precision, options) {}
};

class Recall : public ClassRatio {
 public:
  explicit Recall(const ClassificationOptions& options = {}) : ClassRatio(Kind::Recall, options) {}
};

// F1 unless beta says otherwise.
class FScore : public ClassRatio {
 public:
  explicit FScore(const ClassificationOptions& options = {}) : ClassRatio(Kind::FScore, options) {}
};

enum class Normalize : uint8_t { None, ByTarget, ByGuess, ByAll };

struct ConfusionMatrixOptions {
  int64_t classes = 2;
  Normalize normalize = Normalize::None;
  double threshold = 0.5;
  std::optional<int64_t> ignore_target = {};
};

// [classes, classes]: rows are targets, columns predictions; int64, or float64 where it is divided
// by the sums of rows, columns or all (0 where that is 0). A NaN score is an error of compute(),
// like a label out of range: there is no column for it.
class ConfusionMatrix : public PredictionMetric {
 public:
  explicit ConfusionMatrix(const ConfusionMatrixOptions& options = {});
  std::string description() const override;

 private:
  void add_batch(MetricState& state, const at::Tensor& predictions,
                 const at::Tensor& targets) const override;
  at::Tensor value_of(const MetricTotals& totals) const override;

  ConfusionMatrixOptions options_;
};

}  // namespace horon::metrics
