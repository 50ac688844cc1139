// Metrics of a program's own, whose errors are not Horon's: what fails on one rank fails on all.
// And what Horon's own say of themselves and refuse.
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/metric.h"
#include "horon/torch_bindings/metrics/perplexity.h"

namespace horon::metrics {
namespace {

using testing::AllOf;
using testing::HasSubstr;
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

TEST(OwnMetric, DescriptionsTellNumbersApart) {
  EXPECT_NE(Accuracy({.threshold = 0.3333333}).description(),
            Accuracy({.threshold = 0.3333334}).description());
  EXPECT_NE(ConfusionMatrix({.threshold = 0.50000001}).description(),
            ConfusionMatrix({.threshold = 0.50000002}).description());
}

TEST(OwnMetric, PerplexityOverNoWordsIsRefused) {
  EXPECT_THAT(error_of([] {
                Perplexity().update(at::zeros({0, 0}), at::zeros({0}, at::kLong));
              }),
              StartsWith("invalid argument: perplexity: "));
}

}  // namespace
}  // namespace horon::metrics
