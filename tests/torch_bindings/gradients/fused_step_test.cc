// The fused step against the optimizer's own: the same parameters and state, and which steps it
// leaves to the optimizer.
#include "horon/torch_bindings/gradients/fused_step.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/gradients/gradient_norm.h"
#include "horon/torch_bindings/state/optimizer_state.h"

namespace horon::fused_step_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::HasSubstr;
using torch_detail::FusedUpdate;

at::Tensor random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::kDouble).to(dtype);
}

// Whole vectors and rests of every width; a scalar, one without elements, one for several threads,
// and another order in memory.
std::vector<at::Tensor> make_parameters(at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (int64_t size : {0, 1, 3, 7, 8, 15, 16, 17, 33, 64, 1000, 1023, 100'003}) {
    parameters.push_back(random({size}, 100 + size, dtype));
  }
  parameters.push_back(random({}, 1, dtype));
  parameters.push_back(random({2, 3, 5, 7}, 2, dtype).contiguous(at::MemoryFormat::ChannelsLast));
  for (at::Tensor& parameter : parameters) parameter.set_requires_grad(true);
  return parameters;
}

// Gradients as a program may leave them: in some steps some parameters have none.
void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    gradient.reset();
    if ((i + static_cast<size_t>(step)) % 4 == 0) continue;
    const uint64_t seed = 1000 * static_cast<uint64_t>(step) + i;
    gradient = at::empty_like(parameters[i].detach());
    gradient.copy_(random(parameters[i].sizes(), seed, parameters[i].scalar_type()));
  }
}

// Two groups with options of their own.
template <class Opt, class Options>
Opt make(const std::vector<at::Tensor>& parameters, const Options& options) {
  const auto middle = parameters.begin() + 6;
  auto other = options;
  other.lr(options.lr() / 3);
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(parameters.begin(), middle));
  groups.emplace_back(std::vector<at::Tensor>(middle, parameters.end()),
                      std::make_unique<Options>(other));
  return Opt(groups, options);
}

void expect_same_state(optim::Optimizer& found, optim::Optimizer& expected) {
  const auto mine = torch_detail::take_apart(found);
  const auto other = torch_detail::take_apart(expected);
  ASSERT_EQ(mine.tensors.size(), other.tensors.size());
  EXPECT_EQ(mine.bytes, other.bytes);
  for (size_t i = 0; i < mine.tensors.size(); ++i) {
    EXPECT_TRUE(mine.tensors[i].equal(other.tensors[i])) << "tensor " << i;
    EXPECT_EQ(mine.tensors[i].strides(), other.tensors[i].strides()) << "tensor " << i;
  }
}

constexpr int kManySteps = 6;

// `fused`: the steps that the one optimizer fuses; the other never does. `factor`: the one
// optimizer scales gradients by it in its fused pass, the other's gradients are multiplied before
// its step.
template <class Opt, class Options>
void compare(
    const Options& options, at::ScalarType dtype, double tolerance,
    const std::function<bool(int)>& fused = [](int) { return true; }, double factor = 1) {
  const std::vector<at::Tensor> stock = make_parameters(dtype);
  const std::vector<at::Tensor> mine = make_parameters(dtype);
  Opt own = make<Opt>(stock, options);
  Opt other = make<Opt>(mine, options);
  FusedUpdate update(tolerance == 0 ? FusedStep::WhereBitEqual : FusedStep::WherePossible);
  for (int step = 0; step < kManySteps; ++step) {
    set_gradients(stock, step);
    set_gradients(mine, step);
    for (const at::Tensor& parameter : stock) {
      if (factor != 1 && parameter.grad().defined()) parameter.grad().mul_(factor);
    }
    own.step();
    if (fused(step)) {
      ASSERT_TRUE(update.update(other, factor)) << update.refusal().why;
    } else {
      other.step();
    }
    for (size_t i = 0; i < stock.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "step " << step << ", parameter " << i << " of " << dtype);
      // A graph from before the step counts as outdated after a fused step where it would after
      // LibTorch's.
      EXPECT_EQ(mine[i]._version() > 0, stock[i]._version() > 0);
      if (tolerance == 0) {
        ASSERT_TRUE(mine[i].equal(stock[i]));
      } else if (mine[i].numel() > 0) {
        ASSERT_LE((mine[i] - stock[i]).abs().max().item<double>(), tolerance);
      }
      ASSERT_EQ(mine[i].grad().defined(), stock[i].grad().defined());
      if (mine[i].grad().defined()) {
        EXPECT_TRUE(mine[i].grad().allclose(stock[i].grad(), tolerance, 0));
      }
    }
  }
  EXPECT_EQ(other.state().size(), own.state().size());
  if (tolerance == 0) expect_same_state(other, own);
}

std::vector<optim::SGDOptions> all_sgd_options() {
  std::vector<optim::SGDOptions> all;
  for (const double decay : {0.0, 0.013}) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double dampening : {0.0, 0.3}) {
        const auto options =
            optim::SGDOptions(0.1).momentum(momentum).dampening(dampening).weight_decay(decay);
        all.push_back(options);
        if (momentum > 0 && dampening == 0)
          all.push_back(optim::SGDOptions(options).nesterov(true));
      }
    }
  }
  return all;
}

TEST(FusedSgd, IsEqualToTheBitWithEveryOption) {
  ASSERT_NE(torch_detail::bit_equal_sgd_kernel(), nullptr);
  for (const optim::SGDOptions& options : all_sgd_options()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      SCOPED_TRACE(testing::Message()
                   << "momentum " << options.momentum() << ", dampening " << options.dampening()
                   << ", decay " << options.weight_decay() << ", nesterov " << options.nesterov());
      compare<optim::SGD>(options, dtype, 0);
    }
  }
}

TEST(FusedSgd, TakesTurnsWithTheOptimizer) {
  const auto options = optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  compare<optim::SGD>(options, at::kFloat, 0, [](int step) { return step % 2 == 0; });
  compare<optim::SGD>(options, at::kFloat, 0, [](int step) { return step % 2 != 0; });
}

// Plain LibTorch steps it twice, and the second time it has a momentum already.
TEST(FusedSgd, AParameterListedTwiceIsSteppedTwice) {
  const std::vector<at::Tensor> stock{random({9}, 1, at::kFloat).set_requires_grad(true)};
  const std::vector<at::Tensor> mine{random({9}, 1, at::kFloat).set_requires_grad(true)};
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  optim::SGD own({stock[0], stock[0]}, options);
  optim::SGD other({mine[0], mine[0]}, options);
  FusedUpdate update(FusedStep::WhereBitEqual);
  for (int step = 0; step < 3; ++step) {
    stock[0].mutable_grad() = random({9}, 50 + static_cast<uint64_t>(step), at::kFloat);
    mine[0].mutable_grad() = stock[0].grad().clone();
    own.step();
    ASSERT_TRUE(update.update(other));
    EXPECT_TRUE(stock[0].equal(mine[0]));
  }
}

TEST(FusedAdam, IsWithinRoundingOfTheOptimizer) {
  for (const double decay : {0.0, 0.01}) {
    for (const bool amsgrad : {false, true}) {
      const auto adam = optim::AdamOptions(0.01).weight_decay(decay).amsgrad(amsgrad);
      const auto adamw = optim::AdamWOptions(0.01).weight_decay(decay).amsgrad(amsgrad);
      compare<optim::Adam>(adam, at::kFloat, 1e-6);
      compare<optim::Adam>(adam, at::kDouble, 1e-14);
      compare<optim::AdamW>(adamw, at::kFloat, 1e-6);
      compare<optim::AdamW>(adamw, at::kDouble, 1e-14);
    }
    const auto adagrad = optim::AdagradOptions(0.05).weight_decay(decay).lr_decay(0.1);
    compare<optim::Adagrad>(adagrad, at::kFloat, 1e-6);
    compare<optim::Adagrad>(adagrad, at::kDouble, 1e-14);
  }
  compare<optim::Adam>(optim::AdamOptions(0.01), at::kFloat, 1e-6,
                       [](int step) { return step % 2 == 0; });
}

bool always(int /*step*/) { return true; }

// After the step .grad holds the gradient that it has used, as after clip_grad_norm_().
TEST(FusedStep, ScalesGradientsInItsPass) {
  constexpr double kFactor = 0.3;
  for (const optim::SGDOptions& options : all_sgd_options()) {
    compare<optim::SGD>(options, at::kFloat, 0, always, kFactor);
    compare<optim::SGD>(options, at::kDouble, 0, always, kFactor);
  }
  const auto adam = optim::AdamOptions(0.01).weight_decay(0.01).amsgrad(true);
  const auto adamw = optim::AdamWOptions(0.01).weight_decay(0.01);
  const auto adagrad = optim::AdagradOptions(0.05).lr_decay(0.1);
  compare<optim::Adam>(adam, at::kFloat, 1e-6, always, kFactor);
  compare<optim::Adam>(adam, at::kDouble, 1e-14, always, kFactor);
  compare<optim::AdamW>(adamw, at::kFloat, 1e-6, always, kFactor);
  compare<optim::AdamW>(adamw, at::kDouble, 1e-14, always, kFactor);
  compare<optim::Adagrad>(adagrad, at::kFloat, 1e-6, always, kFactor);
  compare<optim::Adagrad>(adagrad, at::kDouble, 1e-14, always, kFactor);
}

// In every dtype and layout, for any number of threads.
TEST(GradientNorm, IsThatOfLibTorch) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t size : {0, 1, 7, 8, 9, 16'384, 16'385, 100'003}) {
      const at::Tensor values = random({size}, 3 + static_cast<uint64_t>(size), dtype);
      const double expected = values.to(at::kDouble).square().sum().item<double>();
      const double found = torch_detail::sum_of_squares(values);
      EXPECT_NEAR(found, expected, 1e-12 * expected) << dtype << ' ' << size;
    }
  }
  const at::Tensor matrix = random({6, 8}, 1, at::kFloat);
  const double squares = torch_detail::sum_of_squares(matrix);
  EXPECT_NEAR(torch_detail::sum_of_squares(matrix.t()), squares, 1e-12 * squares);
  EXPECT_NEAR(torch_detail::sum_of_squares(matrix.to_sparse()), squares, 1e-12 * squares);
  EXPECT_NEAR(torch_detail::sum_of_squares(at::cat({matrix, matrix}, 1).narrow(1, 0, 8)), squares,
              1e-12 * squares);
  const int threads = at::get_num_threads();
  const at::Tensor large = random({500'001}, 9, at::kFloat);
  const double sum = torch_detail::sum_of_squares(large);
  at::set_num_threads(3);
  EXPECT_EQ(torch_detail::sum_of_squares(large), sum) << "other bits with other threads";
  at::set_num_threads(threads);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    EXPECT_FALSE(std::isfinite(torch_detail::sum_of_squares(at::full({9}, bad))));
  }
}

// An archive or a broadcast may leave state so. The values stay, and all ranks can go on fused.
TEST(FusedSgd, StateThatLiesOtherwiseInMemoryIsLaidOutAnew) {
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  const auto make_one = [&] {
    optim::SGD optimizer({random({4, 6}, 5, at::kFloat).set_requires_grad(true)}, options);
    const at::Tensor& parameter = optimizer.param_groups()[0].params()[0];
    parameter.mutable_grad() = random({4, 6}, 6, at::kFloat);
    auto state = std::make_unique<optim::SGDParamState>();
    state->momentum_buffer(random({6, 4}, 7, at::kFloat).t());
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    return optimizer;
  };
  optim::SGD own = make_one(), other = make_one();
  FusedUpdate update(FusedStep::WhereBitEqual);
  own.step();
  ASSERT_TRUE(update.update(other)) << update.refusal().why;
  const at::Tensor& parameter = other.param_groups()[0].params()[0];
  EXPECT_TRUE(parameter.equal(own.param_groups()[0].params()[0]));
  const auto momentum = [](optim::SGD& optimizer) {
    const auto& state = *optimizer.state().begin()->second;
    return static_cast<const optim::SGDParamState&>(state).momentum_buffer();
  };
  EXPECT_TRUE(momentum(other).equal(momentum(own)));
  EXPECT_EQ(momentum(other).strides(), parameter.strides());
}

// The optimizer has changed nothing, and the text says why.
template <class Opt>
void expect_refused(Opt& optimizer, FusedStep wish, const std::string& why) {
  FusedUpdate update(wish);
  const at::Tensor before = optimizer.param_groups()[0].params()[0].detach().clone();
  const size_t states = optimizer.state().size();
  EXPECT_FALSE(update.update(optimizer));
  EXPECT_THAT(update.refusal().why, HasSubstr(why));
  EXPECT_TRUE(before.equal(optimizer.param_groups()[0].params()[0]));
  EXPECT_EQ(optimizer.state().size(), states);
}

TEST(FusedStepRefuses, WhatItCannotDo) {
  const auto tensor = [](at::ScalarType dtype) {
    return random({4, 6}, 5, dtype).set_requires_grad(true);
  };
  const auto with_gradient = [&](at::ScalarType dtype, const at::Tensor& gradient) {
    at::Tensor parameter = tensor(dtype);
    parameter.mutable_grad() = gradient;
    return std::vector<at::Tensor>{tensor(dtype), parameter};
  };
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  const FusedStep possible = FusedStep::WherePossible;
  optim::SGD bfloat(with_gradient(at::kBFloat16, at::ones({4, 6}, at::kBFloat16)), options);
  expect_refused(bfloat, possible, "neither float32 nor float64");
  optim::SGD sparse(with_gradient(at::kFloat, at::ones({4, 6}).to_sparse(1)), options);
  expect_refused(sparse, possible, "its gradient is sparse");
  optim::SGD turned(with_gradient(at::kFloat, at::ones({6, 4}).t()), options);
  expect_refused(turned, possible, "another dtype or layout");

  optim::SGD loaded(with_gradient(at::kFloat, at::ones({4, 6})), options);
  auto state = std::make_unique<optim::SGDParamState>();
  state->momentum_buffer(at::zeros({4, 6}, at::kDouble));
  loaded.state()[loaded.param_groups()[0].params()[1].unsafeGetTensorImpl()] = std::move(state);
  expect_refused(loaded, possible, "the optimizer's state for it");

  optim::SGD fine(with_gradient(at::kFloat, at::ones({4, 6})), options);
  expect_refused(fine, FusedStep::Never, "fused_step is Never");
  optim::Adam adam(with_gradient(at::kFloat, at::ones({4, 6})), optim::AdamOptions(0.1));
  expect_refused(adam, FusedStep::WhereBitEqual, "last bits");
  optim::RMSprop rms(with_gradient(at::kFloat, at::ones({4, 6})), optim::RMSpropOptions(0.1));
  expect_refused(rms, possible, "only SGD, Adam, AdamW and Adagrad");
}

}  // namespace
}  // namespace horon::fused_step_test
