// Ranks whose gradients, options or parameters are not those of the others.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::unlike_ranks_test {
namespace {

namespace optim = ::torch::optim;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

// One rank's gradient comes too late for the bucket, where the others' is; a rank has none.
TEST(UnlikeRanks, ALatePartOfOneMeetsTheResultOfANonLinearOp) {
  if (size() == 1) return;
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Max, ReduceOp::Product}) {
    for (const double late : {2.0, 5.0}) {
      const at::Tensor a = leaf({3}), b = leaf({2});
      GradientReducer reducer({{"a", a}, {"b", b}}, {.op = op, .wait_in = WaitIn::Step});
      weighted(a, 1).backward();
      reducer.synchronize();  // from now on the bucket does not wait for b
      a.mutable_grad().reset();
      if (rank() == 1) {
        const auto quiet = reducer.no_sync();
        weighted(b, 3).backward();
      }
      weighted(a, 1).backward();
      if (rank() == 0) weighted(b, late).backward();
      reducer.synchronize();
      EXPECT_EQ(reducer.statistics().late_parts, rank() == 0 ? 1 : 0);
      expect_gradient(b, op == ReduceOp::Product ? 3 * late
                         : op == ReduceOp::Min   ? std::min(3.0, late)
                                                 : std::max(3.0, late));
    }
  }
}

// Memory that was never filled is not what a rank without a gradient contributes.
TEST(UnlikeRanks, OneWithoutAGradientContributesNothingToNewBuckets) {
  for (const ReduceOp op : {ReduceOp::Min, ReduceOp::Product, ReduceOp::Sum}) {
    const at::Tensor a = leaf({3}), b = leaf({2});
    GradientReducer reducer({{"a", a}, {"b", b}}, in_flight(op));
    weighted(a, 1).backward();
    reducer.synchronize();  // nobody has b
    reducer.set_backward_passes_per_step(1);
    a.mutable_grad().reset();
    (rank() == 0 ? weighted(a, 1) + weighted(b, 5) : weighted(a, 1)).backward();
    reducer.synchronize();
    expect_gradient(b, 5);
  }
}

TEST(UnlikeRanks, PassesThatOneHasChangedAreNamed) {
  if (size() == 1) return;
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"w", w}}, alone());
  weighted(w, rank() + 1).backward();
  reducer.synchronize();
  if (rank() == 0) reducer.set_backward_passes_per_step(2);
  EXPECT_THAT(error_of([&] {
                weighted(w, rank() + 1).backward();
                reducer.synchronize();
              }),
              AllOf(StartsWith(kMismatch), HasSubstr("2 passes")));
}

// They are looked at before they are rounded.
TEST(UnlikeRanks, NotFiniteGradientsThatTravelIn16BitsAreNamed) {
  const at::Tensor w = leaf({4}), v = leaf({2});
  GradientReducer reducer({{"weight", w}, {"v", v}},
                          {.compression = Compression::BFloat16, .check_finite = true});
  for (const double bad : {kNaN, 1.0, std::numeric_limits<double>::infinity(), 1.0}) {
    const bool is_bad = !std::isfinite(bad);
    const std::string error = error_of([&] {
      (weighted(w, rank() == 0 ? bad : 1) + weighted(v, 1)).backward();
      reducer.synchronize();
    });
    if (is_bad) {
      EXPECT_THAT(error, HasSubstr("gradient of \"weight\" on rank 0"));
    } else {
      expect_gradient(w, 1);
    }
    w.mutable_grad().reset();
    v.mutable_grad().reset();
  }
}

// The other ranks have reduced without it, and could go on alone.
TEST(UnlikeRanks, AFrozenParameterWithoutAPlaceThatOneUnfreezesStopsAll) {
  if (size() == 1) return;
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({2}), z = at::ones({2}, at::kComplexHalf);
    DistributedOptimizer optimizer(optim::SGD({w, z}, 1.0), {{"w", w}, {"z", z}},
                                   {.wait_in = wait_in});
    const auto step = [&] {
      optimizer.zero_grad();
      weighted(w, rank() + 1).backward();
      optimizer.step();
    };
    step();
    const bool differs = rank() == size() - 1;
    at::Tensor(z).requires_grad_(differs);
    EXPECT_THAT(error_of(step),
                HasSubstr(differs ? "parameter \"z\" has dtype ComplexHalf"
                                  : "failed on rank " + std::to_string(size() - 1)));
    EXPECT_NEAR(w[0].item<double>(), 1 - mean_of_ranks(), 1e-6);
    at::Tensor(z).requires_grad_(false);
    step();
    EXPECT_NEAR(w[0].item<double>(), 1 - 2 * mean_of_ranks(), 1e-6);
  }
}

}  // namespace
}  // namespace horon::unlike_ranks_test
