// AdaScale against its definition: one process that computes the gradients of all ranks by itself.
#include "horon/torch_bindings/lr/ada_scale.h"

#include <cmath>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/lr/schedule.h"

namespace horon::ada_scale_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::HasSubstr;

// v and s of gradients, each the mean over `batches` batches of a rank (Johnson et al., section 4).
struct Moments {
  double variance = 0, squared_mean = 0;
};
Moments moments_of(const std::vector<std::vector<at::Tensor>>& gradients, double batches = 1) {
  const auto ranks = static_cast<double>(gradients.size());
  Moments found;
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    at::Tensor mean = at::zeros_like(gradients[0][i]);
    for (const auto& of_rank : gradients) mean += of_rank[i] / ranks;
    for (const auto& of_rank : gradients) {
      found.variance += (of_rank[i] - mean).pow(2).sum().item<double>() / (ranks - 1);
    }
    found.squared_mean += mean.pow(2).sum().item<double>();
  }
  found.squared_mean -= found.variance / ranks;
  found.variance *= batches;
  return found;
}

double gain_of(const Moments& moments, double scale) {
  const double noise = std::max(0.0, moments.variance);
  const double signal = std::max(0.0, moments.squared_mean);
  return (noise + signal) / (noise / scale + signal);
}

std::vector<at::Tensor> gradients_of(Net& net, const std::vector<Batch>& batches) {
  net->zero_grad();
  for (const Batch& batch : batches) {
    (loss_of(net, batch) / static_cast<double>(batches.size())).backward();
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters()) {
    const at::Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? gradient.clone() : at::zeros_like(parameter));
  }
  return gradients;
}

// A training of one process that has all batches, with AdaScale as it is defined.
struct Oracle {
  Net net = make_net(at::kDouble);
  optim::SGD sgd{net->parameters(), optim::SGDOptions(0.1).momentum(0.9)};
  lr::Schedule schedule = lr::cosine(15);
  double smoothing = 0.6, passes = 1;
  double variance = 0, squared_mean = 0, weight = 0, position = 0, gain = 1;

  // The samples of rank r in pass p.
  void step(const Batch& all) {
    std::vector<std::vector<at::Tensor>> of_ranks;
    const auto passes_of_rank = static_cast<int64_t>(passes);
    for (int64_t r = 0; r < size(); ++r) {
      std::vector<Batch> batches;
      for (int64_t p = 0; p < passes_of_rank; ++p) {
        batches.push_back(all.narrow(kShard * (r * passes_of_rank + p), kShard));
      }
      of_ranks.push_back(gradients_of(net, batches));
    }
    if (size() > 1) {
      const Moments now = moments_of(of_ranks, passes);
      weight = smoothing * weight + 1 - smoothing;
      variance = smoothing * variance + (1 - smoothing) * now.variance;
      squared_mean = smoothing * squared_mean + (1 - smoothing) * now.squared_mean;
      gain = gain_of({variance / weight, squared_mean / weight}, size() * passes);
    }
    sgd.param_groups()[0].options().set_lr(0.1 * schedule(position / 2) * gain);
    for (size_t i = 0; i < of_ranks[0].size(); ++i) {
      at::Tensor& gradient = net->parameters()[i].mutable_grad();
      if (!gradient.defined()) continue;
      gradient.zero_();
      for (const auto& of_rank : of_ranks) gradient += of_rank[i] / size();
    }
    sgd.step();
    position += gain;
  }
};

void compare_with_oracle(DistributedOptimizerOptions options, bool by_default = false) {
  const int passes = options.backward_passes_per_step;
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 100;
  Oracle oracle;
  oracle.passes = passes;
  if (by_default) oracle.smoothing = 1 - size() * passes / 1000.0;
  Net net = make_net(at::kDouble);
  DistributedOptimizer optimizer(
      optim::SGD(net->parameters(), optim::SGDOptions(0.1).momentum(0.9)), *net, options);
  AdaScaleOptions of_scale{.steps_per_unit = 2, .smoothing = 0.6};
  if (by_default) of_scale.smoothing.reset();
  AdaScale ada_scale(optimizer, lr::cosine(15), of_scale);
  EXPECT_EQ(ada_scale.scale(), size() * passes);
  for (int step = 0; step < kSteps; ++step) {
    const Batch all = batch_of(step, at::kDouble, kShard * size() * passes);
    oracle.step(all);
    optimizer.zero_grad();
    for (int p = 0; p < passes; ++p) {
      const Batch mine = all.narrow(kShard * (rank() * passes + p), kShard);
      (loss_of(net, mine) * options.grad_scale).backward();
    }
    ada_scale.step();
    ASSERT_NEAR(ada_scale.gain(), oracle.gain, 1e-8) << "step " << step;
    ASSERT_NEAR(ada_scale.position(), oracle.position, 1e-7);
    EXPECT_GE(ada_scale.gain(), 1);
    EXPECT_LE(ada_scale.gain(), ada_scale.scale());
  }
  EXPECT_EQ(ada_scale.steps(), kSteps);
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *oracle.net, 1e-9);
}

TEST(AdaScale, NRanksAgainstOneProcess) {
  compare_with_oracle({});
  compare_with_oracle({.wait_in = WaitIn::Step, .grad_scale = 8});
  compare_with_oracle({.op = ReduceOp::Sum});
  compare_with_oracle({}, /*by_default=*/true);
}

// The options that `changed` was made with would say two batches less.
TEST(AdaScale, KnowsPassesThatHaveBeenChanged) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2}), v = leaf({2});
  DistributedOptimizer changed(optim::SGD({w}, 0.1), {{"w", w}});
  AdaScale of_changed(changed, lr::constant());
  changed.set_backward_passes_per_step(3);
  DistributedOptimizer made(optim::SGD({v}, 0.1), {{"v", v}}, {.backward_passes_per_step = 3});
  AdaScale of_made(made, lr::constant());
  for (int pass = 0; pass < 3; ++pass) {
    weighted(w, rank() + 1).backward();
    weighted(v, rank() + 1).backward();
  }
  of_changed.step();
  of_made.step();
  EXPECT_EQ(of_changed.scale(), 3 * size());
  EXPECT_EQ(of_changed.gain(), of_made.gain());
}

TEST(AdaScale, SeveralBatchesOnEachRank) {
  compare_with_oracle({.backward_passes_per_step = 2, .average_aggregated_gradients = true});
  compare_with_oracle({.backward_passes_per_step = 2});
  compare_with_oracle({.op = ReduceOp::Sum, .backward_passes_per_step = 2});
}

// Rank r has the gradient r + 1 in each of two elements.
Moments of_small_gradients() {
  std::vector<std::vector<at::Tensor>> all;
  for (int r = 0; r < size(); ++r) all.push_back({at::full({2}, r + 1.0, at::kDouble)});
  return moments_of(all);
}

double small_gain(const DistributedOptimizerOptions& options, int passes = 1) {
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, options);
  AdaScale ada_scale(optimizer, lr::constant(), {.batches = passes});
  for (int p = 1; p < passes; ++p) {
    const auto quiet = optimizer.no_sync();
    weighted(w, rank() + 1).backward();
  }
  weighted(w, rank() + 1).backward();
  ada_scale.step();
  return ada_scale.gain();
}

TEST(AdaScale, SumsCompressionAndAddedGradients) {
  if (size() == 1) return;
  Moments moments = of_small_gradients();
  const double once = gain_of(moments, size());
  EXPECT_NEAR(small_gain({}), once, 1e-6);
  EXPECT_NEAR(small_gain({.op = ReduceOp::Sum}), once, 1e-6);
  EXPECT_NEAR(small_gain({.compression = Compression::Float16}), once, 1e-3);
  EXPECT_NEAR(small_gain({.gradient_predivide_factor = 2}), once, 1e-6);
  moments.variance *= 3;  // means over three batches vary a third as much
  EXPECT_NEAR(small_gain({}, 3), gain_of(moments, size() * 3), 1e-6);
  EXPECT_NEAR(small_gain({.op = ReduceOp::Sum}, 3), gain_of(moments, size() * 3), 1e-6);
}

// What the program does to reduced gradients says nothing about how alike the ranks' own were.
TEST(AdaScale, ClippingAndUnscalingChangeNoGain) {
  if (size() == 1) return;
  for (const double factor : {1.0, 0.01, 0.0}) {
    const at::Tensor w = leaf({2});
    DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
    AdaScale ada_scale(optimizer, lr::constant());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      weighted(w, rank() + 1).backward();
      w.mutable_grad().mul_(factor);
      ada_scale.step();
      EXPECT_NEAR(ada_scale.gain(), gain_of(of_small_gradients(), size()), 1e-6);
    }
  }
}

// Steps that tell nothing of the gain do not change it, and are made with the gain before.
TEST(AdaScale, StepsThatCanNotBeMeasured) {
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, {.skip_nonfinite = true});
  AdaScale ada_scale(optimizer, lr::constant());
  const auto backward = [&](double x) { weighted(w, x).backward(); };
  optimizer.zero_grad();
  backward(rank() + 1);
  ada_scale.step();
  const double gain = ada_scale.gain(), position = ada_scale.position();
  if (size() > 1) {
    EXPECT_NEAR(gain, gain_of(of_small_gradients(), size()), 1e-6);
  }

  optimizer.zero_grad();
  backward(rank() == size() - 1 ? kNaN : 1);
  ada_scale.step();  // is left out
  EXPECT_TRUE(optimizer.step_skipped());
  EXPECT_EQ(ada_scale.position(), position);
  EXPECT_EQ(ada_scale.steps(), 1);

  optimizer.zero_grad();
  backward(rank() + 1);
  backward(5);  // a second reduction
  ada_scale.step();
  EXPECT_EQ(ada_scale.gain(), gain);
  EXPECT_EQ(ada_scale.position(), position + gain);

  optimizer.zero_grad();
  if (rank() == 0) backward(1);  // zeros on the others
  ada_scale.step();
  EXPECT_EQ(ada_scale.steps(), 3);
}

// Finite on each rank, and too large for the 16 bits in which it travels.
TEST(AdaScale, AStepThatOverflowsOnItsWayIsNotRemembered) {
  const at::Tensor w = leaf({2});
  const DistributedOptimizerOptions options{.compression = Compression::Float16,
                                            .skip_nonfinite = true};
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, options);
  AdaScale ada_scale(optimizer, lr::constant());
  const auto step_with = [&](double gradient) {
    optimizer.zero_grad();
    weighted(w, gradient).backward();
    ada_scale.step();
    return ada_scale.gain();
  };
  const double gain = step_with(rank() + 1);
  EXPECT_EQ(step_with(1e5), gain);
  EXPECT_EQ(optimizer.step_skipped(), size() > 1);
  EXPECT_NEAR(step_with(rank() + 1), gain, 1e-6);
}

// What the program makes of finite gradients may be left out too.
TEST(AdaScale, AStepThatIsLeftOutDoesNotCount) {
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, {.skip_nonfinite = true});
  AdaScale ada_scale(optimizer, lr::constant(), {.smoothing = 0.5});
  const auto step = [&](double gradient, double factor) {
    optimizer.zero_grad();
    weighted(w, gradient).backward();
    w.mutable_grad().mul_(factor);
    ada_scale.step();
  };
  step(rank() + 1, 1);
  const double gain = ada_scale.gain(), variance = ada_scale.variance();
  const double position = ada_scale.position();
  step(5 * rank() + 1, kNaN);
  EXPECT_TRUE(optimizer.step_skipped());
  EXPECT_EQ(ada_scale.gain(), gain);
  EXPECT_EQ(ada_scale.variance(), variance);
  EXPECT_EQ(ada_scale.position(), position);
  EXPECT_EQ(ada_scale.steps(), 1);
}

TEST(AdaScale, AStepThatThrowsDoesNotCount) {
  class Refusing : public optim::SGD {
   public:
    using SGD::SGD;
    at::Tensor step(LossClosure /*closure*/) override { throw std::runtime_error("no step"); }
  };
  const at::Tensor w = leaf({2});
  DistributedOptimizer<Refusing> optimizer(Refusing({w}, 0.1), {{"w", w}});
  AdaScale ada_scale(optimizer, lr::constant());
  weighted(w, rank() + 1).backward();
  const double gain = ada_scale.gain(), variance = ada_scale.variance();
  EXPECT_THROW(ada_scale.step(), std::runtime_error);
  EXPECT_EQ(ada_scale.steps(), 0);
  EXPECT_EQ(ada_scale.position(), 0);
  EXPECT_EQ(ada_scale.gain(), gain);
  EXPECT_EQ(ada_scale.variance(), variance);
}

// Gradients of pure noise, so that the gain is the number of ranks that have a part in the step.
TEST(AdaScale, RanksThatHaveJoinedHaveNoPartInTheGain) {
  if (size() == 1) return;
  const at::Tensor w = leaf({2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
  AdaScale ada_scale(optimizer, lr::constant(), {.smoothing = 0});
  const auto step = [&] {
    optimizer.zero_grad();
    weighted(w, rank() % 2 == 0 ? 1 : -1).backward();
    ada_scale.step();
  };
  step();
  EXPECT_GT(ada_scale.gain(), 1.5);
  if (rank() < size() - 1) {
    step();
    EXPECT_NEAR(ada_scale.gain(), size() - 1, 1e-6);
  }
  join();
}

TEST(AdaScale, GoesOnFromAnArchive) {
  double gain = 0;
  const auto run = [&](const at::Tensor& w, int begin, int end, std::stringstream* from,
                       std::stringstream* to) {
    DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}});
    AdaScale ada_scale(optimizer, lr::cosine(9), {.smoothing = 0.5});
    if (from != nullptr) {
      ::torch::load(ada_scale, *from);
      EXPECT_EQ(ada_scale.gain(), gain);
    }
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      weighted(w.sin(), step + rank()).backward();
      ada_scale.step();
    }
    if (to != nullptr) {
      ::torch::save(ada_scale, *to);
      gain = ada_scale.gain();
    }
    return ada_scale.position();
  };
  const at::Tensor straight = leaf({3}, at::kDouble), w = leaf({3}, at::kDouble);
  const double want = run(straight, 0, 6, nullptr, nullptr);
  std::stringstream archive, other;
  run(w, 0, 3, nullptr, &archive);
  EXPECT_EQ(run(w, 3, 6, &archive, nullptr), want);
  EXPECT_TRUE(w.equal(straight));
  ::torch::save(at::ones({2}), other);
  EXPECT_THAT(error_of([&] { run(w, 6, 7, &other, nullptr); }), HasSubstr("no state"));
}

TEST(AdaScale, AnOptimizerHeldByThePointerOfItsBase) {
  const at::Tensor w = leaf({2});
  std::unique_ptr<optim::Optimizer> held =
      std::make_unique<optim::SGD>(std::vector{w}, optim::SGDOptions(0.1));
  DistributedOptimizer optimizer(std::move(held), {{"w", w}});
  AdaScale ada_scale(optimizer, lr::constant(0.5));
  weighted(w, 1).backward();  // alike on all ranks
  ada_scale.step();
  EXPECT_NEAR(ada_scale.gain(), 1, 1e-6);
  EXPECT_NEAR(w[0].item<double>(), 1 - 0.1 * 0.5, 1e-6);
}

TEST(AdaScale, WrongUse) {
  const at::Tensor w = leaf({4, 2});
  DistributedOptimizer optimizer(optim::SGD({w}, 0.1), {{"w", w}}, {.sparse_as_dense = false});
  const auto made_with = [&](const AdaScaleOptions& options) {
    return error_of([&] { AdaScale(optimizer, lr::constant(), options); });
  };
  const at::Tensor v = leaf({1});
  DistributedOptimizer of_most(optim::SGD({v}, 0.1), {{"v", v}}, {.op = ReduceOp::Max});
  EXPECT_THAT(error_of([&] { AdaScale(of_most, lr::constant()); }), HasSubstr("but op is Max"));
  EXPECT_THAT(made_with({.batches = 0}), HasSubstr("batches is 0"));
  EXPECT_THAT(made_with({.smoothing = 1}), HasSubstr("smoothing is 1"));
  EXPECT_THAT(made_with({.steps_per_unit = 0}), HasSubstr("steps_per_unit is 0"));
  EXPECT_THAT(error_of([&] { AdaScale(optimizer, nullptr); }), HasSubstr("schedule is null"));
  if (size() == 1) return;
  AdaScale ada_scale(optimizer, lr::constant());
  ::torch::embedding(w, at::zeros({1}, at::kLong), -1, false, true).sum().backward();
  EXPECT_THAT(error_of([&] { ada_scale.step(); }), HasSubstr("[4, 2] stays sparse"));
}

}  // namespace
}  // namespace horon::ada_scale_test
