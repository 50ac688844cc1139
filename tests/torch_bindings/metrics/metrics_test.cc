// Metrics of N ranks are those of one process on all samples, however the samples are divided; and
// those of one process are what scikit-learn says (golden_values.py).
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/metrics/auroc.h"
#include "horon/torch_bindings/metrics/mean.h"
#include "horon/torch_bindings/metrics/metric_collection.h"
#include "horon/torch_bindings/metrics/perplexity.h"

namespace horon::metrics_test {
namespace {

using namespace metrics;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::error_of;

// From golden_values.py.
constexpr double kAccuracy = 0.22;
constexpr double kTopTwo = 0.44;
constexpr std::array<double, 4> kPrecisionPerClass = {0.38095238095238093, 0.07142857142857142,
                                                      0.13333333333333333, 0.0};
constexpr std::array<double, 4> kRecallPerClass = {0.36363636363636365, 0.07692307692307693,
                                                   0.13333333333333333, 0.0};
constexpr std::array<double, 4> kF1PerClass = {0.37209302325581395, 0.07407407407407407,
                                               0.13333333333333333, 0.0};
constexpr double kFTwoMacro = 0.19202112871837643;
constexpr std::array<double, 16> kConfusion = {8, 7, 7, 0, 6, 1, 6, 0, 7, 6, 2, 0, 0, 0, 0, 0};
constexpr std::array<double, 16> kConfusionByTarget = {0.36363636363636365,
                                                       0.3181818181818182,
                                                       0.3181818181818182,
                                                       0,
                                                       0.46153846153846156,
                                                       0.07692307692307693,
                                                       0.46153846153846156,
                                                       0,
                                                       0.4666666666666667,
                                                       0.4,
                                                       0.13333333333333333,
                                                       0,
                                                       0,
                                                       0,
                                                       0,
                                                       0};
constexpr double kAuroc = 0.5560064935064934;
constexpr std::array<double, 3> kAurocPerClass = {0.4155844155844156, 0.30353430353430355,
                                                  0.580952380952381};
constexpr double kSquaredError = 0.301730106369847;
constexpr double kAbsoluteError = 0.4682352950423956;
constexpr double kPerplexity = 7.990170967311343;

constexpr int64_t kSamples = 50, kClasses = 4;
const double kNan = std::numeric_limits<double>::quiet_NaN();

// Any number of samples of golden_values.py.
struct Samples {
  at::Tensor scores, logits, targets, binary_scores, binary_targets;

  Samples of(const std::vector<int64_t>& which) const {
    const at::Tensor index = at::tensor(which, at::kLong);
    const auto take = [&](const at::Tensor& all) { return all.index_select(0, index); };
    return {take(scores), take(logits), take(targets), take(binary_scores), take(binary_targets)};
  }
};

Samples all_samples() {
  const at::Tensor i = at::arange(kSamples, at::kLong), c = at::arange(kClasses, at::kLong);
  const at::Tensor row = i.unsqueeze(1);
  return {(row * 37 + c * c * 11 + row * c * 7).remainder(29).to(at::kFloat) / 29,
          (row * 37 + c * 11 + row * c * 7).remainder(23).to(at::kDouble) / 4,
          (i * 13 + i.floor_divide(3)).remainder(7).remainder(kClasses - 1),
          (i * 37).remainder(17).to(at::kDouble).div(17).to(at::kFloat),
          (i * i * 5 + i).remainder(7).lt(3).to(at::kLong)};
}

// Ways to divide the samples among ranks: alike, unevenly, and all on the last.
std::vector<std::vector<int64_t>> divisions_of_mine() {
  std::vector<std::vector<int64_t>> mine(3);
  for (int64_t i = 0; i < kSamples; ++i) {
    const std::array<int64_t, 3> owners = {i % size(), i * i % 7 % size(), size() - 1};
    for (size_t way = 0; way < owners.size(); ++way) {
      if (owners[way] == rank()) mine[way].push_back(i);
    }
  }
  return mine;
}

struct Everything {
  MetricCollection metrics;  // of scores of classes
  Accuracy binary{{.average = Average::Binary}};
  Auroc auroc;
  MeanSquaredError squared;
  MeanAbsoluteError absolute;
  Perplexity perplexity;

  Everything() {
    metrics.add("accuracy", Accuracy({.classes = kClasses}));
    metrics.add("top 2", Accuracy({.classes = kClasses, .top_k = 2}));
    metrics.add("macro precision", Precision({.classes = kClasses, .average = Average::Macro}));
    const ClassificationOptions each{.classes = kClasses, .average = Average::PerClass};
    metrics.add("precision", Precision(each));
    metrics.add("recall", Recall(each));
    metrics.add("f1", FScore(each));
    metrics.add("f2", FScore({.classes = kClasses, .average = Average::Macro, .beta = 2}));
    metrics.add("weighted f1", FScore({.classes = kClasses, .average = Average::Weighted}));
    metrics.add("confusion", ConfusionMatrix({.classes = kClasses}));
    metrics.add("by target",
                ConfusionMatrix({.classes = kClasses, .normalize = Normalize::ByTarget}));
    metrics.add("auroc", Auroc({.classes = kClasses, .average = Average::PerClass}));
    metrics.add("macro auroc", Auroc({.classes = kClasses}));
  }

  // In batches of `batch`.
  void update(const Samples& samples, int64_t batch) {
    for (int64_t begin = 0; begin < samples.targets.size(0); begin += batch) {
      const auto cut = [&](const at::Tensor& all) { return all.slice(0, begin, begin + batch); };
      metrics.update(cut(samples.scores), cut(samples.targets));
      const at::Tensor scores = cut(samples.binary_scores), targets = cut(samples.binary_targets);
      binary.update(scores, targets);
      auroc.update(scores, targets);
      squared.update(scores, targets);
      absolute.update(scores, targets);
      perplexity.update(cut(samples.logits), cut(samples.targets));
    }
  }

  std::map<std::string, at::Tensor> compute() const {
    std::map<std::string, at::Tensor> values = metrics.compute();
    values["binary"] = binary.compute();
    values["binary auroc"] = auroc.compute();
    values["squared"] = squared.compute();
    values["absolute"] = absolute.compute();
    values["perplexity"] = perplexity.compute();
    return values;
  }
};

void expect_near(const at::Tensor& value, std::span<const double> expected) {
  const at::Tensor flat = value.to(at::kDouble).reshape({-1});
  ASSERT_GE(static_cast<size_t>(flat.numel()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), expected[i], 1e-12) << i;
  }
}
void expect_near(const at::Tensor& value, double expected, double error = 1e-12) {
  EXPECT_NEAR(value.item<double>(), expected, error);
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && at::allclose(a, b, 0, 0, true);
}

void expect_golden(std::map<std::string, at::Tensor> values) {
  expect_near(values["accuracy"], kAccuracy);
  expect_near(values["top 2"], kTopTwo);
  expect_near(values["macro precision"], 0.1952380952380952);
  expect_near(values["precision"], kPrecisionPerClass);
  expect_near(values["recall"], kRecallPerClass);
  expect_near(values["f1"], kF1PerClass);
  expect_near(values["f2"], kFTwoMacro);
  expect_near(values["weighted f1"], 0.22298018949181742);
  expect_near(values["confusion"], kConfusion);
  EXPECT_EQ(values["confusion"].scalar_type(), at::kLong);
  expect_near(values["by target"], kConfusionByTarget);
  expect_near(values["binary auroc"], kAuroc);
  expect_near(values["auroc"], kAurocPerClass);
  EXPECT_TRUE(std::isnan(values["auroc"][3].item<double>()));  // no sample is of this class
  expect_near(values["macro auroc"],
              (kAurocPerClass[0] + kAurocPerClass[1] + kAurocPerClass[2]) / 3);
  expect_near(values["squared"], kSquaredError);
  expect_near(values["absolute"], kAbsoluteError);
  expect_near(values["perplexity"], kPerplexity);
}

TEST(Metrics, AreThoseOfOneProcessHoweverSamplesAreDivided) {
  const Samples all = all_samples();
  Everything one;
  one.update(all, kSamples);
  std::map<std::string, at::Tensor> expected = one.metrics.compute_local();
  expected["binary"] = one.binary.compute_local();
  expected["binary auroc"] = one.auroc.compute_local();
  for (const std::vector<int64_t>& mine : divisions_of_mine()) {
    for (const int64_t batch : {1, 7}) {
      Everything everything;
      everything.update(all.of(mine), batch);
      const std::map<std::string, at::Tensor> values = everything.compute();
      expect_golden(values);
      for (const auto& [name, value] : expected) {
        EXPECT_TRUE(same_bits(values.at(name), value)) << name << value << values.at(name);
      }
      // compute() leaves the samples where they are.
      for (const auto& [name, value] : everything.compute()) {
        EXPECT_TRUE(same_bits(values.at(name), value)) << name;
      }
    }
  }
}

TEST(Metrics, OfTwoClasses) {
  const Samples all = all_samples();
  const ClassificationOptions positive{.average = Average::Binary};
  Precision precision(positive);
  Recall recall(positive);
  FScore f1(positive);
  for (PredictionMetric* metric :
       {static_cast<PredictionMetric*>(&precision), static_cast<PredictionMetric*>(&recall),
        static_cast<PredictionMetric*>(&f1)}) {
    if (rank() == 0) metric->update(all.binary_scores, all.binary_targets.to(at::kBool));
  }
  expect_near(precision.compute(), 0.4782608695652174);
  expect_near(recall.compute(), 0.5);
  expect_near(f1.compute(), 0.4888888888888889);
}

TEST(Metrics, ACollectionNeedsOneCollectiveOrTwo) {
  const auto starts = [] {
    const Statistics now = statistics();
    return now.negotiated_starts + now.frozen_starts;
  };
  MetricCollection sums;
  for (int i = 0; i < 5; ++i) {
    sums.add(std::to_string(i), FScore({.classes = 10, .average = Average::Macro}));
    sums.add("mean " + std::to_string(i), Mean());
  }
  barrier();
  uint64_t before = starts();
  sums.compute();
  EXPECT_EQ(starts() - before, 1U);
  sums.add("auroc", Auroc());
  sums.add("another auroc", Auroc({.classes = 3}));
  before = starts();
  sums.compute();
  EXPECT_EQ(starts() - before, 2U);
}

TEST(Metrics, MeanCountsSamplesAndNotRanks) {
  Mean loss;
  EXPECT_TRUE(std::isnan(loss.compute().item<double>()));
  // Rank r has batches of r samples, rank 0 none.
  double sum = 0, count = 0;
  for (int r = 1; r < size(); ++r) {
    sum += r * (10.0 + r) + 2 * r;
    count += r + 2;
  }
  if (rank() > 0) {
    loss.update(at::full({}, 10.0 + rank()), rank());
    loss.update(at::full({2}, rank(), at::kBFloat16));
  }
  loss.update(kNan, 0);  // a batch without samples
  const double mean = loss.compute().item<double>();
  if (size() == 1) {
    EXPECT_TRUE(std::isnan(mean));
  } else {
    EXPECT_NEAR(mean, sum / count, 1e-14);
  }
  loss.reset();
  loss.update(at::tensor({0.0, kNan, 2.0}), at::tensor({1.0, 0.0, 3.0}));
  EXPECT_DOUBLE_EQ(loss.compute().item<double>(), 6.0 / 4);
  EXPECT_THAT(error_of([&] { loss.update(1.0, -1); }), StartsWith("invalid argument: mean: "));
}

TEST(Metrics, ForwardGivesTheBatchAndAddsIt) {
  const Samples all = all_samples();
  Accuracy accuracy({.classes = kClasses});
  FScore f1({.classes = kClasses, .average = Average::Macro});
  Mean loss;
  const Samples first = all.of({0, 1, 2, 3}), second = all.of({4, 5});
  (void)accuracy.forward(first.scores, first.targets);
  const BatchValue batch = accuracy.forward(second.scores, second.targets);
  Accuracy alone({.classes = kClasses});
  alone.update(second.scores, second.targets);
  EXPECT_TRUE(same_bits(batch.value, alone.compute_local()));
  ASSERT_TRUE(batch.is_mean_over_samples());
  EXPECT_EQ(batch.weight.item<double>(), 2);
  EXPECT_EQ(loss.forward(at::full({}, 2.5), 8).weight.item<double>(), 8);
  EXPECT_FALSE(f1.forward(first.scores, first.targets).is_mean_over_samples());
  EXPECT_FALSE(MeanSquaredError({.root = true})
                   .forward(first.targets, first.targets)
                   .is_mean_over_samples());
  alone.reset();
  alone.update(at::cat({first.scores, second.scores}), at::cat({first.targets, second.targets}));
  EXPECT_TRUE(same_bits(accuracy.compute(), alone.compute_local()));
  const at::Tensor wrong = at::full_like(first.targets, kClasses);
  EXPECT_THAT(error_of([&] { (void)accuracy.forward(first.scores, wrong); }),
              StartsWith("invalid argument"));  // and the batch is not counted
  EXPECT_TRUE(same_bits(accuracy.compute(), alone.compute_local()));
}

template <class T>
concept CanBeAveraged = requires(T value) {
  allreduce(value);
};
static_assert(CanBeAveraged<at::Tensor> && !CanBeAveraged<BatchValue>);

TEST(Metrics, UndefinedValues) {
  for (const Average average : {Average::Binary, Average::Micro, Average::Macro}) {
    EXPECT_TRUE(std::isnan(FScore({.average = average}).compute().item<double>()));
  }
  EXPECT_TRUE(std::isnan(Auroc().compute().item<double>()));
  EXPECT_TRUE(std::isnan(MeanSquaredError().compute().item<double>()));
  EXPECT_TRUE(std::isnan(Perplexity().compute().item<double>()));
  const at::Tensor targets = at::tensor({0, 0, 2}), guesses = at::tensor({0, 0, 0});
  const auto value = [&](auto metric) {
    metric.update(guesses, targets);
    return metric.compute_local();
  };
  const auto options = [](Average average, double undefined) {
    return ClassificationOptions{.classes = 4, .average = average, .zero_division = undefined};
  };
  // Precision is 2/3 for class 0 and 0/0 for class 2; classes 1 and 3 do not occur.
  expect_near(value(Precision(options(Average::Macro, 0))), 2.0 / 3 / 2);
  expect_near(value(Precision(options(Average::Macro, 1))), (2.0 / 3 + 1) / 2);
  expect_near(value(Precision(options(Average::Macro, kNan))), 2.0 / 3);
  expect_near(value(Precision(options(Average::PerClass, 0.5))),
              std::array<double, 4>{2.0 / 3, 0.5, 0.5, 0.5});
  Auroc one_sided;
  one_sided.update(at::tensor({0.1, 0.2}), at::tensor({1, 1}));
  EXPECT_TRUE(std::isnan(one_sided.compute().item<double>()));
}

TEST(Metrics, NanScoresAreMissesAndIgnoredTargetsDoNotCount) {
  const at::Tensor scores = at::tensor({0.9, kNan, 0.1, 0.1, 0.2, 0.8}).view({3, 2});
  Accuracy accuracy({.ignore_target = -100});
  accuracy.update(scores, at::tensor({0, 1, -100}));
  EXPECT_EQ(accuracy.compute_local().item<double>(), 0);
  accuracy.update(scores, at::tensor({1, 0, 1}));
  expect_near(accuracy.compute_local(), 2.0 / 5);
  // [n, classes, height]: a picture has a label for each place.
  Accuracy places;
  places.update(at::tensor({0.9, 0.2, 0.1, 0.8}).view({1, 2, 2}), at::tensor({0, 0}).view({1, 2}));
  expect_near(places.compute_local(), 0.5);
  Perplexity tokens({.ignore_target = 7});
  tokens.update(at::zeros({2, 3, 5}, at::kBFloat16), at::full({2, 3}, 7));
  tokens.update(at::zeros({1, 2, 5}), at::tensor({4, 7}).view({1, 2}));
  expect_near(tokens.compute_local(), 5, 1e-6);
}

TEST(Metrics, OfProcessSets) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const ProcessSet set = add_process_set({0, 2});
  Mean mean;
  mean.update(rank(), 1);
  if (set.includes_me()) {
    EXPECT_EQ(mean.compute({.process_set = set}).item<double>(), 1);
  } else {
    EXPECT_THAT(error_of([&] { mean.compute({.process_set = set}); }),
                HasSubstr("is not in this process set"));
  }
  remove_process_set(set);
}

TEST(Metrics, WrongUse) {
  Accuracy accuracy({.classes = 3});
  EXPECT_THAT(error_of([&] {
                accuracy.update(at::zeros({2, 4}), at::zeros({2}, at::kLong));
              }),
              AllOf(StartsWith("invalid argument: accuracy: predictions are Float [2, 4]"),
                    HasSubstr("scores [n, 3, ...]")));
  EXPECT_THAT(error_of([&] {
                accuracy.update(at::zeros({2, 3}), at::zeros({2}));
              }),
              HasSubstr("targets are Float; give the number of the class"));
  EXPECT_THAT(error_of([] { FScore({.classes = 3, .average = Average::Binary}); }),
              HasSubstr("Average::Binary needs classes = 2"));
  EXPECT_THAT(error_of([] { Recall({.top_k = 2}); }), HasSubstr("only accuracy has top_k"));
  EXPECT_THAT(error_of([] {
                MeanSquaredError().update(at::zeros({2, 1}), at::zeros({2}));
              }),
              HasSubstr("[2, 1] and targets [2]"));
  // A label out of range on one rank is an error of all.
  MetricCollection metrics;
  metrics.add("accuracy", Accuracy({.classes = 3}));
  if (rank() == size() - 1) metrics.update(at::tensor({0, 3}), at::tensor({0, 1}));
  EXPECT_THAT(
      error_of([&] { metrics.compute(); }),
      AllOf(StartsWith("invalid argument: metric \"accuracy\": 1 sample has"),
            HasSubstr("outside 0 to 2"), HasSubstr("(on rank " + std::to_string(size() - 1))));
  EXPECT_THAT(error_of([&] { metrics.add("accuracy", Mean()); }), HasSubstr("in it already"));
  metrics.reset();
  EXPECT_TRUE(std::isnan(metrics.compute().at("accuracy").item<double>()));
  if (size() == 1) return;
  Accuracy other({.classes = 3, .top_k = rank() == 0 ? 2 : 1});
  EXPECT_THAT(error_of([&] { other.compute({.name = "other"}); }),
              AllOf(StartsWith("mismatch: tensor \"other\""), HasSubstr("top 2")));
}

}  // namespace
}  // namespace horon::metrics_test
