// The norm of the gradients of a step, by which they are clipped (step_scaling_test.cc has more).
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::step_norm_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(StepNorm, IsEmptyWithoutAReason) {
  const at::Tensor w = leaf({5});
  DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}}, {.skip_nonfinite = true});
  for (const bool skips : {true, false}) {
    optimizer.set_skip_nonfinite(skips);
    optimizer.zero_grad();
    weighted(w, rank() == 0 ? kInfinity : 1).backward();
    optimizer.step();
    EXPECT_EQ(optimizer.step_skipped(), skips);
    EXPECT_EQ(optimizer.grad_norm().has_value(), skips);
    EXPECT_EQ(w.isfinite().all().item<bool>(), skips);
  }
}

// As clip_grad_norm_() does: a model that is half NaN would train on in silence.
TEST(StepNorm, ReachesAllGradientsWhereItIsNan) {
  const at::Tensor w = leaf({4}), v = leaf({4});
  DistributedOptimizer optimizer(optim::SGD({w, v}, 1.0), {{"w", w}, {"v", v}},
                                 {.clip_grad_norm = 1});
  (weighted(w, std::nan("")) + weighted(v, 1)).backward();
  optimizer.step();
  EXPECT_TRUE(v.isnan().all().item<bool>()) << v;
}

// Sums of the same squares in another order may differ in the last bit.
TEST(StepNorm, IsTheSameForGroupsInAnotherOrder) {
  constexpr int kParameters = 40;
  NamedTensors named;
  std::vector<optim::OptimizerParamGroup> groups;
  for (int i = 0; i < kParameters; ++i) {
    named.emplace_back(std::to_string(i), leaf({3}, at::kDouble));
    groups.emplace_back(std::vector<at::Tensor>{named[named.size() - 1].second});
  }
  if (rank() == 0) std::reverse(groups.begin(), groups.end());
  DistributedOptimizer optimizer(optim::SGD(groups, 1.0), named, {.clip_grad_norm = 1});
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    at::Tensor loss;
    for (int i = 0; i < kParameters; ++i) {
      const at::Tensor term =
          weighted(named[static_cast<size_t>(i)].second, std::sin(step + 7 * i));
      loss = loss.defined() ? loss + term : term;
    }
    loss.backward();
    optimizer.step();
    const at::Tensor norm = at::full({}, *optimizer.grad_norm(), at::kDouble);
    EXPECT_TRUE(
        allreduce(norm, {.op = ReduceOp::Min}).equal(allreduce(norm, {.op = ReduceOp::Max})));
  }
}

// What it has measured is not the norm of the next step, which backward() reduces.
TEST(StepNorm, IsNotThatOfAStepThatHasFailed) {
  const at::Tensor w = leaf({4}), v = leaf({4});
  GradientReducerOptions options = alone();
  options.check_finite = true;
  options.clip_grad_norm = 1e9;
  DistributedOptimizer optimizer(optim::SGD({w, v}, 1.0), {{"w", w}, {"v", v}}, options);
  {
    const auto quiet = optimizer.no_sync();
    (weighted(w, 100) + weighted(v, std::nan(""))).backward();
  }
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("gradient of \"v\" on rank"));
  optimizer.zero_grad();
  weighted(w, 3).backward();
  optimizer.step();
  EXPECT_NEAR(optimizer.grad_norm().value_or(0), 6, 1e-6);
}

}  // namespace
}  // namespace horon::step_norm_test
