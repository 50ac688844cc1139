// Metrics of a program's own, whose errors are not Horon's: what fails on one rank fails on all.
// And what Horon's own say of themselves and refuse.
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/metrics/auroc.h"
#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/mean.h"
#include "horon/torch_bindings/metrics/metric.h"
#include "horon/torch_bindings/metrics/metric_collection.h"
#include "horon/torch_bindings/metrics/perplexity.h"

namespace horon::metrics {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::error_of;

bool is_last() { return rank() == size() - 1; }

class UnreadableList : public Metric {
 public:
  UnreadableList() : Metric(0, 0, 1) {}
  void spoil() {
    MetricState state = empty_state();
    state.lists.front().emplace_back();  // undefined
    merge(std::move(state));
  }
  std::string description() const override { return "a list"; }

 protected:
  at::Tensor value_of(const MetricTotals& totals) const override {
    return at::scalar_tensor(totals.lists.front().numel(), at::kDouble);
  }
};

TEST(OwnMetric, ThatOneRankCanNotReadLeavesNothingOpen) {
  UnreadableList list;
  if (is_last()) list.spoil();
  EXPECT_THAT(error_of([&] { list.compute({.name = "unreadable"}); }),
              HasSubstr("\"unreadable\": "));
  list.reset();
  EXPECT_EQ(list.compute({.name = "unreadable"}).item<double>(), 0);
}

class Nothing : public Metric {
 public:
  explicit Nothing(std::string what) : Metric(1, 1), what_(std::move(what)) {}
  std::string description() const override { return what_; }

 protected:
  at::Tensor value_of(const MetricTotals& totals) const override { return totals.sums[0]; }

 private:
  std::string what_;
};

// Ranks whose metric has lists wait in two collectives, the other ranks in one.
TEST(OwnMetric, ThatHasListsOnSomeRanksOnlyIsAMismatchOnAll) {
  const auto disagreement = [](const Metric& common, const Metric& of_last) {
    const std::string error =
        error_of([&] { (is_last() ? of_last : common).compute({.name = "unlike"}); });
    barrier();
    return error;
  };
  const UnreadableList list;
  const Nothing nothing("nothing"), other("nothing else");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(disagreement(nothing, list),
                AllOf(StartsWith("mismatch"), HasSubstr("a list"), HasSubstr("nothing")));
    EXPECT_THAT(disagreement(list, nothing), StartsWith("mismatch"));
    EXPECT_THAT(disagreement(nothing, other), StartsWith("mismatch"));
    EXPECT_EQ(disagreement(list, list), "no error");  // nothing is left open under that name
    EXPECT_EQ(disagreement(nothing, nothing), "no error");
  }
}

// For negative samples it throws an error of Horon's, for none an error of another kind.
class Picky : public Metric {
 public:
  Picky() : Metric(1, 1) {}
  void add(double sample) {
    MetricState state = empty_state();
    state.sums.fill_(sample);
    state.counts.fill_(1);
    merge(std::move(state));
  }
  std::string description() const override { return "picky"; }

 protected:
  at::Tensor value_of(const MetricTotals& totals) const override {
    if (totals.counts[0].item<int64_t>() == 0) throw std::runtime_error("no samples");
    if (totals.sums[0].item<double>() < 0) throw Error(ErrorCode::InvalidArgument, "negative");
    return totals.sums[0];
  }
};

TEST(OwnMetric, WhoseSamplesOfARankAreAnotherErrorStillNamesTheRanks) {
  Picky picky;
  if (is_last()) picky.add(-1);
  EXPECT_THAT(
      error_of([&] { picky.compute({.name = "picky"}); }),
      AllOf(HasSubstr("negative"), HasSubstr(" (on rank " + std::to_string(size() - 1) + ")")));
  picky.reset();
  picky.add(2);
  EXPECT_EQ(picky.compute({.name = "picky"}).item<double>(), 2.0 * size());
}

TEST(Metrics, AMacroAverageIsOverClassesThatAreTargetsOrGuesses) {
  const ClassificationOptions macro{.classes = 4, .average = Average::Macro};
  Precision precision(macro);
  precision.update(at::tensor({0, 2, 1}), at::tensor({0, 0, 1}));
  EXPECT_DOUBLE_EQ(precision.compute_local().item<double>(), (1 + 1 + 0) / 3.0);
}

// As in torchmetrics 1.9: the first guesses of top_k count as guesses for top_k 1 alone.
TEST(Metrics, AMacroAccuracyOfTheFirstKIsOverClassesThatAreTargets) {
  const at::Tensor scores =
      at::tensor({4.0, 3.0, 2.0, 1.0, 1.0, 3.0, 2.0, 4.0, 2.0, 4.0, 3.0, 1.0, 1.0, 2.0, 3.0, 4.0});
  const auto accuracy_of = [&](int64_t k) {
    Accuracy accuracy({.classes = 4, .average = Average::Macro, .top_k = k});
    accuracy.update(scores.view({4, 4}), at::tensor({0, 1, 1, 0}));
    return accuracy.compute_local().item<double>();
  };
  EXPECT_DOUBLE_EQ(accuracy_of(1), (0.5 + 0.5 + 0) / 3);  // class 3 is guessed
  EXPECT_DOUBLE_EQ(accuracy_of(2), 0.75);
  EXPECT_DOUBLE_EQ(accuracy_of(4), 1);
}

TEST(Metrics, GuessesOfIgnoredTargetsDoNotCount) {
  Precision precision({.average = Average::Binary, .ignore_target = -100});
  precision.update(at::tensor({1, 1, 7}), at::tensor({1, -100, -100}));
  EXPECT_EQ(precision.compute_local().item<double>(), 1);
}

TEST(Metrics, ABatchThatOneOfACollectionRefusesIsCountedByNone) {
  MetricCollection metrics;
  metrics.add("accuracy", Accuracy());
  metrics.add("squared", MeanSquaredError());
  EXPECT_THAT(error_of([&] {
                metrics.update(at::ones({2, 2}), at::tensor({0, 1}));
              }),
              HasSubstr("[2, 2] and targets [2]"));
  EXPECT_TRUE(std::isnan(metrics.compute_local().at("accuracy").item<double>()));
}

TEST(Metrics, DescriptionsTellNumbersApart) {
  EXPECT_NE(Accuracy({.threshold = 0.3333333}).description(),
            Accuracy({.threshold = 0.3333334}).description());
  EXPECT_NE(ConfusionMatrix({.threshold = 0.50000001}).description(),
            ConfusionMatrix({.threshold = 0.50000002}).description());
}

// Two samples, of which the second has no scores.
constexpr double kNoScore = std::numeric_limits<double>::quiet_NaN();
at::Tensor broken_scores() { return at::tensor({0.9, 0.1, kNoScore, 0.5}).view({2, 2}); }

TEST(Metrics, AurocKeepsScoresAndIsUndefinedWhereOneIsNan) {
  Auroc auroc;
  at::Tensor scores = at::tensor({0.1F, 0.9F, 0.5F});
  auroc.update(scores, at::tensor({0, 1, 0}));
  scores.fill_(0);  // the program uses its memory again
  EXPECT_EQ(auroc.compute_local().item<double>(), 1);
  for (const int64_t target : {0, 1}) {
    Auroc broken;
    broken.update(at::tensor({0.1, 0.9}), at::tensor({0, 1}));
    broken.update(at::full({1}, kNoScore), at::full({1}, target));
    EXPECT_TRUE(std::isnan(broken.compute_local().item<double>())) << target;
  }
}

TEST(Metrics, AurocLeavesOutIgnoredTargets) {
  Auroc binary({.ignore_target = -100});
  binary.update(at::tensor({0.1, 0.9, 0.5, kNoScore}), at::tensor({0, 1, 0, -100}));
  EXPECT_EQ(binary.compute_local().item<double>(), 1);
  const at::Tensor scores = at::eye(3, at::kDouble);
  Auroc three({.classes = 3, .ignore_target = 7});
  three.update(scores, at::tensor({0, 1, 2}));
  three.update(scores, at::full({3}, 7));
  EXPECT_EQ(three.compute_local().item<double>(), 1);
  EXPECT_NE(three.description(), Auroc({.classes = 3}).description());
  three.update(scores, at::tensor({0, 1, 3}));
  EXPECT_THAT(error_of([&] { three.compute_local(); }),
              AllOf(HasSubstr("1 sample has"), Not(HasSubstr("NaN"))));
}

TEST(Metrics, OnlyAccuracyIsAMeanOverSamples) {
  const at::Tensor targets = at::tensor({0, 1});
  const BatchValue accuracy = Accuracy().forward(broken_scores(), targets);
  ASSERT_TRUE(accuracy.is_mean_over_samples());
  EXPECT_EQ(accuracy.value.item<double>(), 0.5);
  EXPECT_EQ(accuracy.weight.item<double>(), 2) << "a sample without a guess counts too";
  const ClassificationOptions micro{.average = Average::Micro};
  EXPECT_FALSE(Precision(micro).forward(broken_scores(), targets).is_mean_over_samples());
  EXPECT_FALSE(FScore(micro).forward(broken_scores(), targets).is_mean_over_samples());
}

TEST(Metrics, ASampleWithoutAGuessHasNoPlaceInAConfusionMatrix) {
  ConfusionMatrix confusion;
  confusion.update(broken_scores(), at::tensor({0, 1}));
  EXPECT_THAT(error_of([&] { confusion.compute_local(); }),
              AllOf(HasSubstr("1 sample has"), HasSubstr("or a NaN among its scores")));
}

TEST(Metrics, PerplexityOverNoWordsIsRefused) {
  EXPECT_THAT(error_of([] {
                Perplexity().update(at::zeros({0, 0}), at::zeros({0}, at::kLong));
              }),
              StartsWith("invalid argument: perplexity: "));
}

}  // namespace
}  // namespace horon::metrics
