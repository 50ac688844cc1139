// grad_scale, skip_nonfinite and clip_grad_norm: N ranks on shards of a batch against plain
// LibTorch on the whole batch, which clips, divides and leaves steps out in its own loop.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"

namespace horon::step_scaling_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 1024;
constexpr double kClip = 0.5;

// Small in every third step: that one is not clipped, the others are, by different factors.
at::Tensor clipped_loss_of(Net& net, const Batch& batch, int step) {
  return loss_of(net, batch) * (step % 3 == 0 ? 0.1 : 1);
}

// Two groups with options of their own; parameters without gradients ("unused") among them.
template <class Opt, class Options>
Opt make_optimizer(const Net& net, const Options& options) {
  auto other = options;
  other.lr(options.lr() / 2);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{net->conv->weight, net->conv->bias, net->unused});
  groups.emplace_back(
      std::vector<at::Tensor>{net->norm->weight, net->norm->bias, net->empty, net->hidden->weight,
                              net->hidden->bias, net->out->weight, net->out->bias},
      std::make_unique<Options>(other));
  return Opt(groups, options);
}

// The norms before clipping.
template <class Opt, class Options>
std::vector<double> train_alone(Net& net, const Options& options, at::ScalarType dtype) {
  Opt plain = make_optimizer<Opt>(net, options);
  std::vector<double> norms;
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    clipped_loss_of(net, batch_of(step, dtype), step).backward();
    norms.push_back(::torch::nn::utils::clip_grad_norm_(net->parameters(), kClip));
    plain.step();
  }
  return norms;
}

template <class Opt, class Options>
void compare(const Options& options, at::ScalarType dtype, double tolerance,
             DistributedOptimizerOptions with = {}, bool in_closure = false) {
  Net alone = make_net(dtype);
  const std::vector<double> norms = train_alone<Opt>(alone, options, dtype);
  with.bucket_bytes = 2000;
  with.first_bucket_bytes = 100;
  with.grad_scale = kScale;
  with.clip_grad_norm = kClip;
  Net net = make_net(dtype);
  DistributedOptimizer optimizer(make_optimizer<Opt>(net, options), *net, with);
  int clipped = 0;
  for (int step = 0; step < kSteps; ++step) {
    const auto closure = [&] {
      optimizer.zero_grad();
      at::Tensor loss = clipped_loss_of(net, shard_of(batch_of(step, dtype)), step) * kScale;
      loss.backward();
      return loss;
    };
    if (in_closure) {
      EXPECT_TRUE(optimizer.step(closure).defined());
    } else {
      closure();
      optimizer.step();
    }
    const double norm = norms[static_cast<size_t>(step)];
    EXPECT_NEAR(optimizer.grad_norm().value_or(-1), norm, 1e-4 * norm) << step;
    EXPECT_FALSE(optimizer.step_skipped());
    clipped += norm > kClip ? 1 : 0;
    // What the step has used.
    const double used = ::torch::nn::utils::clip_grad_norm_(net->parameters(), kInfinity);
    EXPECT_NEAR(used, std::min(norm, kClip), 1e-3 * kClip);
  }
  EXPECT_EQ(clipped, kSteps - (kSteps + 2) / 3) << "else the test says little";
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *alone, tolerance);
}

TEST(StepScaling, OfSgd) {
  const auto options = optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01).nesterov(true);
  compare<optim::SGD>(options, at::kDouble, 1e-7);  // LibTorch adds 1e-6 to the norm, as we do
  compare<optim::SGD>(options, at::kFloat, 2e-5);
  compare<optim::SGD>(options, at::kDouble, 1e-7, {.fused_step = FusedStep::Never});
  compare<optim::SGD>(options, at::kDouble, 1e-7, {.wait_in = WaitIn::Step});
  compare<optim::SGD>(options, at::kDouble, 1e-7, {}, /*in_closure=*/true);
  compare<optim::SGD>(optim::SGDOptions(0.1).momentum(0.5).dampening(0.2), at::kDouble, 1e-7,
                      {.compression = Compression::None, .skip_nonfinite = true});
}

TEST(StepScaling, OfAdaptiveOptimizers) {
  const DistributedOptimizerOptions fused{.fused_step = FusedStep::WherePossible};
  const auto adam = optim::AdamOptions(0.01).amsgrad(true).weight_decay(0.01);
  compare<optim::Adam>(adam, at::kDouble, 1e-7, fused);
  compare<optim::Adam>(adam, at::kFloat, 1e-3, fused);
  compare<optim::Adam>(adam, at::kDouble, 1e-7, {}, /*in_closure=*/true);
  compare<optim::AdamW>(optim::AdamWOptions(0.01), at::kDouble, 1e-7, fused);
  compare<optim::Adagrad>(optim::AdagradOptions(0.05), at::kDouble, 1e-7, fused);
  compare<optim::RMSprop>(optim::RMSpropOptions(0.01), at::kDouble, 1e-7, {}, true);
}

// To the bit: with a power of two as scale the fused and the optimizer's own step round alike.
TEST(StepScaling, FusedStepsOfSgdAreEqualToTheBit) {
  Net nets[] = {make_net(at::kFloat), make_net(at::kFloat)};
  for (const bool fused : {false, true}) {
    Net& net = nets[fused ? 1 : 0];
    DistributedOptimizer optimizer(
        optim::SGD(net->parameters(), optim::SGDOptions(0.1).momentum(0.9)), *net,
        {.fused_step = fused ? FusedStep::WhereBitEqual : FusedStep::Never,
         .grad_scale = kScale,
         .clip_grad_norm = kClip});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      (loss_of(net, shard_of(batch_of(step, at::kFloat))) * kScale).backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.fused_step_refusal().empty(), fused);
  }
  expect_same_parameters(*nets[1], *nets[0], 0);
}

// NaN on one rank alone: no rank makes the step, also where the optimizer would make it itself.
TEST(StepScaling, NonfiniteStepsAreLeftOutOnAllRanks) {
  for (const FusedStep wish : {FusedStep::WherePossible, FusedStep::Never}) {
    const at::Tensor w = leaf({40'000});
    const at::Tensor v = leaf({3}, at::kDouble);
    DistributedOptimizer optimizer(optim::Adam({w, v}, 0.1), {{"w", w}, {"v", v}},
                                   {.fused_step = wish, .skip_nonfinite = true});
    const auto train_step = [&](double mine) {
      optimizer.zero_grad();
      (weighted(w, mine) + weighted(v, mine)).backward();
      optimizer.step();
    };
    const auto adam_steps = [&] {
      const auto& state = *optimizer.state().at(w.unsafeGetTensorImpl());
      return static_cast<const optim::AdamParamState&>(state).step();
    };
    train_step(2);
    EXPECT_FALSE(optimizer.step_skipped());
    EXPECT_NEAR(optimizer.grad_norm().value_or(0), 2 * std::sqrt(40'003), 1e-6);
    const at::Tensor before = w.detach().clone();
    for (const double bad : {kInfinity, std::nan("")}) {
      train_step(rank() == size() - 1 ? bad : 1);
      EXPECT_TRUE(optimizer.step_skipped());
      EXPECT_FALSE(std::isfinite(optimizer.grad_norm().value_or(0)));
      EXPECT_TRUE(before.equal(w));
      EXPECT_EQ(adam_steps(), 1);
    }
    // Squares of these are infinite in float64, but they are not.
    optimizer.zero_grad();
    weighted(v, 1e200).backward();
    optimizer.step();
    EXPECT_FALSE(optimizer.step_skipped());
    train_step(2);
    EXPECT_FALSE(optimizer.step_skipped());
    EXPECT_EQ(adam_steps(), 2);
    EXPECT_TRUE(w.isfinite().all().item<bool>());
    EXPECT_FALSE(before.equal(w));
  }
}

TEST(StepScaling, ALossScaleThatChanges) {
  const at::Tensor w = leaf({5});
  DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}}, {.skip_nonfinite = true});
  double expected = 1;
  for (const double scale : {1.0, 65536.0, 0.5}) {
    optimizer.set_grad_scale(scale);
    optimizer.zero_grad();
    weighted(w, 0.25 * scale).backward();
    optimizer.step();
    expected -= 0.25;
    EXPECT_TRUE(w.eq(expected).all().item<bool>()) << w;
    expect_gradient(w, 0.25);
  }
  for (const double bad : {0.0, -1.0, kInfinity, std::nan("")}) {
    EXPECT_THAT(error_of([&] { optimizer.set_grad_scale(bad); }),
                AllOf(StartsWith(kInvalid), HasSubstr("grad_scale is")));
  }
}

// What a program does to gradients between backward() and step() counts: also through data().
TEST(StepScaling, TheNormIsOfGradientsAsStepFindsThem) {
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const at::Tensor w = leaf({4});
    DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}},
                                   {.wait_in = wait_in, .clip_grad_norm = 1e9});
    for (const double factor : {0.5, 2.0}) {
      optimizer.zero_grad();
      weighted(w, 3).backward();
      if (wait_in == WaitIn::Step) optimizer.synchronize();
      w.grad().data().mul_(factor);
      optimizer.step();
      EXPECT_NEAR(optimizer.grad_norm().value_or(0), 6 * factor, 1e-6);
    }
  }
}

// With WaitIn::Step the norm is computed as buckets arrive, and includes what functions change.
TEST(StepScaling, TheNormIncludesWhatAFunctionAfterBucketsChanges) {
  const at::Tensor w = leaf({4}), v = leaf({4});
  DistributedOptimizer optimizer(optim::SGD({w, v}, 1.0), {{"w", w}, {"v", v}},
                                 {.bucket_bytes = 1,
                                  .first_bucket_bytes = 1,
                                  .wait_in = WaitIn::Step,
                                  .clip_grad_norm = kInfinity});
  const auto train_step = [&] {
    optimizer.zero_grad();
    (weighted(w, 3) + weighted(v, 4)).backward();
    optimizer.step();
    return optimizer.grad_norm().value_or(0);
  };
  EXPECT_NEAR(train_step(), 10, 1e-6);
  optimizer.after_bucket([&](const BucketView& bucket) {
    if (bucket.index == 0) return;
    for (const at::Tensor& parameter : {w, v}) parameter.grad().zero_();  // the one before too
  });
  EXPECT_EQ(train_step(), 0);
}

// The optimizer steps it twice; its gradient counts and is scaled once, as by clip_grad_norm_().
TEST(StepScaling, AParameterListedTwice) {
  for (const FusedStep wish : {FusedStep::WherePossible, FusedStep::Never}) {
    const at::Tensor w = leaf({4});
    DistributedOptimizer optimizer(optim::SGD({w, w}, 1.0), {{"w", w}},
                                   {.fused_step = wish, .grad_scale = 2, .clip_grad_norm = 1});
    weighted(w, 4).backward();  // a norm of 8, unscaled 4
    optimizer.step();
    EXPECT_NEAR(optimizer.grad_norm().value_or(0), 4, 1e-6);
    expect_gradient(w, 0.5);
    EXPECT_TRUE(w.allclose(at::zeros({4}), 0, 1e-5)) << w;
  }
}

// Never fused. One row on each rank.
TEST(StepScaling, GradientsThatStaySparse) {
  const at::Tensor table = leaf({size() + 1, 2}, at::kDouble);
  DistributedOptimizer optimizer(
      optim::SGD({table}, 1.0), {{"table", table}},
      {.op = ReduceOp::Sum, .sparse_as_dense = false, .grad_scale = 2, .clip_grad_norm = 1});
  const auto train_step = [&](double factor) {
    optimizer.zero_grad();
    const at::Tensor mine = at::full({1}, rank(), at::kLong);
    (::torch::embedding(table, mine, -1, false, /*sparse=*/true) * factor).sum().backward();
    optimizer.step();
  };
  train_step(20);
  EXPECT_FALSE(table.grad().layout() == at::kStrided);
  const double norm = 10 * std::sqrt(2 * size());
  EXPECT_NEAR(optimizer.grad_norm().value_or(0), norm, 1e-9);
  at::Tensor expected = at::full({size() + 1, 2}, 1 - 10 / (norm + 1e-6), at::kDouble);
  expected[size()].fill_(1);
  EXPECT_TRUE(table.allclose(expected, 0, 1e-9)) << table;
}

// A rank outside the process set clips its own gradients by their own norm.
TEST(StepScaling, InAProcessSet) {
  const ProcessSet first = add_process_set({0});
  const at::Tensor w = leaf({4});
  DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}},
                                 {.process_set = first, .clip_grad_norm = 1});
  weighted(w, rank() + 1).backward();
  optimizer.step();
  EXPECT_NEAR(optimizer.grad_norm().value_or(0), 2 * (rank() + 1), 1e-6);
  EXPECT_TRUE(w.allclose(at::full({4}, 0.5), 0, 1e-5)) << w;
}

// State and parameters of an archive of plain LibTorch and of ours are the same.
TEST(StepScaling, TrainingGoesOnFromAnArchive) {
  const auto options = optim::AdamWOptions(0.01);
  const DistributedOptimizerOptions with{.fused_step = FusedStep::WherePossible,
                                         .clip_grad_norm = kClip};
  const auto train_steps = [](Net& net, auto& optimizer, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer.zero_grad();
      loss_of(net, shard_of(batch_of(step, at::kFloat))).backward();
      optimizer.step();
    }
  };
  Net straight = make_net(at::kFloat), first = make_net(at::kFloat), second = make_net(at::kFloat);
  DistributedOptimizer whole(optim::AdamW(straight->parameters(), options), *straight, with);
  train_steps(straight, whole, 0, 6);
  std::stringstream of_net, of_optimizer;
  {
    DistributedOptimizer half(optim::AdamW(first->parameters(), options), *first, with);
    train_steps(first, half, 0, 3);
    ::torch::save(first, of_net);
    ::torch::save(half, of_optimizer);
  }
  ::torch::load(second, of_net);
  optim::AdamW loaded(second->parameters(), options);
  ::torch::load(loaded, of_optimizer);
  DistributedOptimizer rest(std::move(loaded), *second, with);
  train_steps(second, rest, 3, 6);
  expect_same_parameters(*second, *straight, 0);
}

// Nothing has been changed, and no rank waits for another.
TEST(StepScaling, OptimizersThatCallTheClosureAreRefused) {
  const at::Tensor w = leaf({4});
  DistributedOptimizer optimizer(optim::LBFGS({w}, optim::LBFGSOptions(1)), {{"w", w}},
                                 {.skip_nonfinite = true});
  int calls = 0;
  const std::string text = error_of([&] {
    optimizer.step([&] {
      ++calls;
      return at::ones({});
    });
  });
  EXPECT_THAT(text, AllOf(StartsWith(kInvalid), HasSubstr("LBFGS"), HasSubstr("calls the closure"),
                          HasSubstr("without a closure")));
  EXPECT_EQ(calls, 0);
}

TEST(StepScaling, WrongOptions) {
  const at::Tensor w = leaf({4});
  const auto error_with = [&](const DistributedOptimizerOptions& options) {
    return error_of([&] { DistributedOptimizer(optim::SGD({w}, 1.0), {{"w", w}}, options); });
  };
  EXPECT_THAT(error_with({.grad_scale = 0}), AllOf(StartsWith(kInvalid), HasSubstr("grad_scale")));
  for (const double bad : {0.0, -1.0, std::nan("")}) {
    EXPECT_THAT(error_with({.clip_grad_norm = bad}),
                AllOf(StartsWith(kInvalid), HasSubstr("clip_grad_norm is")));
  }
  EXPECT_THAT(error_with({.check_finite = true, .skip_nonfinite = true}), HasSubstr("both given"));
  EXPECT_THAT(error_of([&] {
                GradientReducer({{"w", w}}, {.clip_grad_norm = 1});
              }),
              AllOf(StartsWith(kInvalid), HasSubstr("a GradientReducer makes no steps")));
}

TEST(StepScaling, RanksThatClipOtherwiseAreNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank can't differ";
  const at::Tensor w = leaf({4});
  DistributedOptimizerOptions options;
  if (rank() == 1) options.clip_grad_norm = 2;
  DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}}, options);
  EXPECT_THAT(error_of([&] {
                weighted(w, 1).backward();
                optimizer.step();
              }),
              AllOf(StartsWith(to_string(ErrorCode::Mismatch)), HasSubstr("clipped to norm 2")));
}

}  // namespace
}  // namespace horon::step_scaling_test
