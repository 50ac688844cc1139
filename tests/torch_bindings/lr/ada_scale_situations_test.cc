// AdaScale with sums of gradients, beside a program's own function, and with a schedule that fails.
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"
#include "horon/torch_bindings/lr/reduce_on_plateau.h"
#include "horon/torch_bindings/lr/schedule.h"

namespace horon::ada_scale_situations_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Each batch's gradient is 1 on all ranks, so that the gain is 1.
TEST(AdaScaleSituations, AStepIsThatOfOneBatchAlsoWhereGradientsAreSums) {
  for (const DistributedOptimizerOptions& options : std::vector<DistributedOptimizerOptions>{
           {},
           {.op = ReduceOp::Sum},
           {.backward_passes_per_step = 4},
           {.backward_passes_per_step = 4, .average_aggregated_gradients = true}}) {
    const at::Tensor w = leaf({2}, at::kDouble);
    DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, options);
    AdaScale ada_scale(optimizer, lr::constant());
    for (int p = 0; p < options.backward_passes_per_step; ++p) weighted(w, 1).backward();
    ada_scale.step();
    EXPECT_EQ(ada_scale.gain(), 1);
    EXPECT_DOUBLE_EQ(w[0].item<double>(), 1 - 0.1);
  }
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  AdaScale ada_scale(optimizer, lr::constant(), {.batches = 2});
  {
    const auto quiet = optimizer.no_sync();
    weighted(w, 0.5).backward();
  }
  weighted(w, 0.5).backward();
  ada_scale.step();
  EXPECT_DOUBLE_EQ(w[0].item<double>(), 1 - 0.1);
  EXPECT_EQ(ada_scale.squared_mean(), size() == 1 ? 0 : 2);
}

TEST(AdaScaleSituations, ASumOfTheRanksThatAreLeftIsDividedByTheirNumber) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, {.op = ReduceOp::Sum});
  AdaScale ada_scale(optimizer, lr::constant());
  if (rank() < size() - 1) {
    weighted(w, 1).backward();
    ada_scale.step();
    EXPECT_DOUBLE_EQ(w[0].item<double>(), 1 - 0.1);
  }
  join();
}

TEST(AdaScaleSituations, AnOptimizerHasOneAtATime) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  const auto step = [&](AdaScale& ada_scale) {
    optimizer.zero_grad();
    weighted(w, rank() + 1).backward();
    ada_scale.step();
  };
  {
    AdaScale first(optimizer, lr::constant());
    EXPECT_THAT(error_of([&] { AdaScale second(optimizer, lr::constant(0.5)); }),
                HasSubstr("this optimizer has one already"));
    step(first);
    if (size() > 1) {
      EXPECT_GT(first.variance(), 0) << "it still sees the gradients";
    }
    EXPECT_DOUBLE_EQ(first.learning_rates().front(), 0.1 * first.gain());
  }
  EXPECT_THAT(error_of([&] { AdaScale refused(optimizer, nullptr); }), HasSubstr("is null"));
  AdaScale next(optimizer, lr::constant());
  step(next);
}

TEST(AdaScaleSituations, APlateauLowersWhatItMultiplies) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  AdaScale ada_scale(optimizer, lr::constant());
  ReduceLrOnPlateau plateau(ada_scale, {.factor = 0.5, .patience = 0});
  EXPECT_FALSE(plateau.step(1));
  EXPECT_TRUE(plateau.step(1));
  weighted(w, 1).backward();
  ada_scale.step();
  EXPECT_EQ(ada_scale.gain(), 1);
  EXPECT_DOUBLE_EQ(w[0].item<double>(), 1 - 0.05);
}

// AdaScale would set the learning rates that the plateau has lowered.
TEST(AdaScaleSituations, APlateauOfItsOptimizerAloneIsRefused) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  ReduceLrOnPlateau before(optimizer, {.factor = 0.5, .patience = 0});
  {
    AdaScale ada_scale(optimizer, lr::constant());
    const auto is_refused = AllOf(StartsWith("invalid argument: ReduceLrOnPlateau: "),
                                  HasSubstr("give the AdaScale in the place"));
    EXPECT_THAT(error_of([&] { ReduceLrOnPlateau refused(optimizer); }), is_refused);
    EXPECT_THAT(error_of([&] { before.step(1); }), is_refused);
  }
  EXPECT_FALSE(before.step(1));
  EXPECT_TRUE(before.step(1));
}

// AdaScale would set the learning rates again.
TEST(AdaScaleSituations, AnLrSchedulerOfItsOptimizerIsRefused) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  LrScheduler scheduler(optimizer, lr::constant());
  {
    AdaScale ada_scale(optimizer, lr::constant());
    EXPECT_THAT(error_of([&] { scheduler.step(); }),
                AllOf(StartsWith("invalid argument: LrScheduler: "),
                      HasSubstr("give the AdaScale its schedule")));
    EXPECT_EQ(scheduler.steps(), 0);
  }
  scheduler.step();
  EXPECT_EQ(scheduler.steps(), 1);
}

// A rank's own gradient would be as many times as large, which looks like noise.
TEST(AdaScaleSituations, AWeightIsRefused) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  {
    AdaScale ada_scale(optimizer, lr::constant());
    const std::string error = error_of([&] { optimizer.set_weight(32); });
    if (size() > 1) {
      EXPECT_THAT(error, AllOf(StartsWith("invalid argument"), HasSubstr("an AdaScale measures")));
    }
    weighted(w, 1).backward();
    ada_scale.step();
    EXPECT_EQ(ada_scale.gain(), 1);
  }
  optimizer.set_weight(32);
}

TEST(AdaScaleSituations, StepsThatCanNotBeMeasuredAreTold) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, in_flight());
  AdaScale ada_scale(optimizer, lr::constant(), {.name = "noise"});
  const auto log_of = [&](int steps, int passes) {
    testing::internal::CaptureStderr();
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      // The second one's gradients come after their bucket.
      for (int pass = 0; pass < passes; ++pass) weighted(w, rank() + 1).backward();
      ada_scale.step();
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(log_of(19, 2), "");
  EXPECT_EQ(log_of(1, 1), "");
  EXPECT_EQ(log_of(19, 2), "");
  const std::string log = log_of(20, 2);
  if (rank() == 0 && size() > 1) {
    EXPECT_THAT(log, HasSubstr("AdaScale \"noise\": in none of the last 20 steps"));
    EXPECT_EQ(log.find("AdaScale"), log.rfind("AdaScale")) << log;
  } else {
    EXPECT_EQ(log, "");
  }
}

// The program's function sees what is reduced, whether it or AdaScale was set first.
TEST(AdaScaleSituations, BeforeBucketStaysThePrograms) {
  const at::Tensor w = leaf({2}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  int calls = 0;
  const auto halve = [&](const BucketView& bucket) {
    ++calls;
    bucket.flat.mul_(0.5);
  };
  const auto backward = [&] {
    optimizer.zero_grad();
    weighted(w, 2.0 * (rank() + 1)).backward();
  };
  // Rank r has the gradient r + 1 in each of two elements (Johnson et al., section 4).
  const double n = size(), mean = (n + 1) / 2;
  const double variance = 2 * n * (n + 1) / 12, squared_mean = 2 * mean * mean - variance / n;
  const double gain = n == 1 ? 1 : (variance + squared_mean) / (variance / n + squared_mean);
  optimizer.before_bucket(halve);
  for (int round = 1; round <= 2; ++round) {
    AdaScale ada_scale(optimizer, lr::constant());
    if (round == 2) optimizer.before_bucket(halve);
    backward();
    ada_scale.step();
    EXPECT_NEAR(ada_scale.gain(), gain, 1e-9);
    EXPECT_EQ(calls, round);
  }
  backward();
  optimizer.step();
  EXPECT_EQ(calls, 3);
}

TEST(AdaScaleSituations, AScheduleThatThrowsChangesNothing) {
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  double factor = 1;
  AdaScale ada_scale(optimizer, [&](double) { return factor; }, {.smoothing = 0});
  const auto step_with = [&](double gradient) {
    optimizer.zero_grad();
    weighted(w, gradient).backward();
    ada_scale.step();
  };
  step_with(1);
  factor = -1;
  const double gain = ada_scale.gain(), variance = ada_scale.variance();
  EXPECT_THAT(error_of([&] { step_with(rank() % 2 == 0 ? 1 : -1); }), HasSubstr("gives -"));
  EXPECT_EQ(ada_scale.gain(), gain);
  EXPECT_EQ(ada_scale.variance(), variance);
  EXPECT_EQ(ada_scale.steps(), 1);
}

}  // namespace
}  // namespace horon::ada_scale_situations_test
