// AdaScale with a GradScaler, against AdaScale without one.
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/lr/schedule.h"

namespace horon::scaled_ada_scale_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using amp::GradScaler;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kInfiniteStep = 5;

// One parameter, its optimizer, AdaScale and a scaler whose scale grows and shrinks.
struct Training {
  explicit Training(bool scaled, const DistributedOptimizerOptions& options = {})
      : optimizer(optim::SGD({w}, optim::SGDOptions(0.01).momentum(0.9)), {{"w", w}}, options),
        ada_scale(optimizer, lr::cosine(40), {.smoothing = 0.5}),
        scaler({.init_scale = 1024, .growth_interval = 2, .enabled = scaled}) {}

  // Gradients that differ from rank to rank, and from step to step.
  void backward(int step, double factor = 1) {
    optimizer.zero_grad();
    const at::Tensor moved = at::arange(4, at::kDouble) + 3 * step + rank();
    scaler.scale((w * (moved.sin() + 1)).sum() * factor).backward();
  }
  bool end_step() {
    const bool made = scaler.step(ada_scale);
    scaler.update();
    return made;
  }

  at::Tensor w = leaf({4}, at::kDouble);
  DistributedOptimizer<optim::SGD> optimizer;
  AdaScale ada_scale;
  GradScaler scaler;
};

void compare_with_unscaled(bool unscaled_first, const DistributedOptimizerOptions& options) {
  Training plain(false), scaled(true, options);
  for (int step = 0; step < 12; ++step) {
    if (step == kInfiniteStep) {
      const at::Tensor before = scaled.w.detach().clone();
      scaled.backward(step, rank() == size() - 1 ? kInfinity : 1);
      if (unscaled_first) scaled.scaler.unscale_(scaled.optimizer);
      const double scale = scaled.scaler.get_scale();
      EXPECT_FALSE(scaled.end_step());
      EXPECT_TRUE(scaled.optimizer.step_skipped());
      EXPECT_EQ(scaled.scaler.get_scale(), scale / 2);
      EXPECT_TRUE(scaled.w.equal(before)) << scaled.w;
    } else {
      plain.backward(step);
      EXPECT_TRUE(plain.end_step());
      scaled.backward(step);
      if (unscaled_first) scaled.scaler.unscale_(scaled.optimizer);
      EXPECT_TRUE(scaled.end_step());
    }
    EXPECT_NEAR(scaled.ada_scale.gain(), plain.ada_scale.gain(), 1e-9) << "step " << step;
    EXPECT_NEAR(scaled.ada_scale.variance(), plain.ada_scale.variance(), 1e-9) << "step " << step;
    EXPECT_NEAR(scaled.ada_scale.squared_mean(), plain.ada_scale.squared_mean(), 1e-9);
    EXPECT_NEAR(scaled.ada_scale.position(), plain.ada_scale.position(), 1e-8);
    EXPECT_EQ(scaled.ada_scale.steps(), plain.ada_scale.steps());
  }
  EXPECT_TRUE(scaled.w.allclose(plain.w, 1e-9, 1e-9)) << scaled.w << plain.w;
  EXPECT_TRUE(size() == 1 || plain.ada_scale.gain() > 1.01) << "else it says little";
}

TEST(ScaledAdaScale, EqualsOneWithoutAScaler) {
  for (const bool unscaled_first : {false, true}) {
    compare_with_unscaled(unscaled_first, {});
    compare_with_unscaled(unscaled_first, {.wait_in = WaitIn::Step});
    compare_with_unscaled(unscaled_first, {.fused_step = FusedStep::Never});
  }
}

TEST(ScaledAdaScale, AScaleOfTheOptimizerGoesBesides) {
  Training plain(false), scaled(true, {.grad_scale = 8});
  for (const bool unscaled_first : {false, true}) {
    plain.backward(0);
    EXPECT_TRUE(plain.end_step());
    scaled.backward(0, 8);
    if (unscaled_first) scaled.scaler.unscale_(scaled.optimizer);
    EXPECT_TRUE(scaled.end_step());
    EXPECT_NEAR(scaled.ada_scale.variance(), plain.ada_scale.variance(), 1e-9);
    EXPECT_TRUE(scaled.w.allclose(plain.w, 1e-9, 1e-9));
  }
}

TEST(ScaledAdaScale, GradientsThatAScalerHasDividedAreStillItsOwn) {
  Training training(true);
  training.backward(0);
  training.scaler.unscale_(training.optimizer);
  EXPECT_THAT(error_of([&] { training.ada_scale.step(); }),
              HasSubstr("call scaler.step(ada_scale)"));
  EXPECT_TRUE(training.w.eq(1).all().item<bool>()) << training.w;
  EXPECT_TRUE(training.end_step());
  EXPECT_FALSE(training.w.eq(1).all().item<bool>());
  EXPECT_EQ(training.ada_scale.steps(), 1);
  EXPECT_THAT(error_of([&] {
                training.backward(1);
                training.scaler.step(training.ada_scale);
                training.scaler.step(training.ada_scale);
              }),
              HasSubstr("was called already"));
  training.scaler.update();
  // Unscales the gradients of a round that the program gives up.
  training.backward(2);
  training.scaler.unscale_(training.optimizer);
  training.scaler.update();
  training.optimizer.zero_grad();
  weighted(training.w, 1).backward();
  training.ada_scale.step();
  EXPECT_EQ(training.ada_scale.steps(), 3);
}

TEST(ScaledAdaScale, MissingPassesAreFoundBeforeGradientsAreMeasuredOrDivided) {
  const at::Tensor w = leaf({4}, at::kDouble);
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, {.backward_passes_per_step = 2});
  GradScaler scaler({.init_scale = 4});
  const auto after_passes = [&](int passes, const auto& call) {
    optimizer.zero_grad();
    for (int pass = 0; pass < passes; ++pass) scaler.scale(weighted(w, 1)).backward();
    return error_of(call);
  };
  const auto is_refused = HasSubstr("backward_passes_per_step = 2");
  EXPECT_THAT(after_passes(1, [&] { scaler.unscale_(optimizer); }), is_refused);
  AdaScale ada_scale(optimizer, lr::constant());
  EXPECT_THAT(after_passes(1, [&] { ada_scale.step(); }), is_refused);
  const auto scaled_step = [&] {
    scaler.step(ada_scale);
    scaler.update();
  };
  EXPECT_THAT(after_passes(1, scaled_step), is_refused);
  EXPECT_TRUE(w.eq(1).all().item<bool>()) << w;
  EXPECT_EQ(ada_scale.steps(), 0);
  EXPECT_EQ(after_passes(2, scaled_step), "no error");
  const auto with_those_so_far = [&] {
    optimizer.synchronize();
    scaled_step();
  };
  EXPECT_EQ(after_passes(1, with_those_so_far), "no error");
  EXPECT_EQ(ada_scale.steps(), 2);
}

// The knob is for gradients that nobody expects to be infinite.
TEST(ScaledAdaScale, LeavesAStepOutThoughTheKnobChecksWhatIsReduced) {
  shutdown();
  init({.set = {{"HORON_CHECK_FINITE", "1"}}});
  {
    Training training(true, {.skip_nonfinite = true});
    training.backward(0, rank() == size() - 1 ? kInfinity : 1);
    EXPECT_FALSE(training.end_step());
    EXPECT_EQ(training.scaler.get_scale(), 512);
    training.backward(1);
    EXPECT_TRUE(training.end_step());
  }
  shutdown();
  init();
}

}  // namespace
}  // namespace horon::scaled_ada_scale_test
