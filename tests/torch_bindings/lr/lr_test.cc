// The learning rate in training: what schedulers set, what LARS and LAMB compute (against their
// formulas in plain loops), and N ranks on shards against one process on the whole batch.
#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"
#include "horon/torch_bindings/lr/scaling.h"

namespace horon::lr_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(ScaleLr, Rules) {
  const double n = size();
  const DistributedOptimizerOptions averaged{.backward_passes_per_step = 4,
                                             .average_aggregated_gradients = true};
  const DistributedOptimizerOptions summed{.op = ReduceOp::Sum, .backward_passes_per_step = 4};
  EXPECT_DOUBLE_EQ(scale_lr(0.5), 0.5 * n);
  EXPECT_DOUBLE_EQ(scale_lr(0.5, LrScaling::SquareRoot), 0.5 * std::sqrt(n));
  EXPECT_DOUBLE_EQ(scale_lr(0.5, LrScaling::None), 0.5);
  EXPECT_DOUBLE_EQ(scale_lr(0.5, averaged), 0.5 * n * 4);
  EXPECT_DOUBLE_EQ(scale_lr(0.5, averaged, LrScaling::SquareRoot), 0.5 * std::sqrt(n) * 2);
  // Sums have grown by n and by 4 already.
  EXPECT_DOUBLE_EQ(scale_lr(0.5, summed), 0.5);
  EXPECT_DOUBLE_EQ(scale_lr(0.5, summed, LrScaling::SquareRoot), 0.5 / std::sqrt(n) / 2);
  const ProcessSet first = add_process_set({0});
  EXPECT_DOUBLE_EQ(scale_lr(0.5, {.process_set = first}), 0.5);
  EXPECT_THAT(error_of([] { scale_lr(-1); }), HasSubstr("learning rate is -1"));
  EXPECT_DOUBLE_EQ(scale_lr(0.5, ReduceOp::Adasum), 0.5);
  EXPECT_THAT(error_of([] { scale_lr(0.5, ReduceOp::Max); }), HasSubstr("but op is Max"));
}

// Groups of learning rates 0.1 and 0.02.
template <class Opt, class Options>
Opt with_two_groups(Options options) {
  std::vector<optim::OptimizerParamGroup> groups;
  options.lr(0.1);
  groups.emplace_back(std::vector<at::Tensor>{leaf({2})}, std::make_unique<Options>(options));
  options.lr(0.02);
  groups.emplace_back(std::vector<at::Tensor>{leaf({3})}, std::make_unique<Options>(options));
  return Opt(groups, options);
}

template <class Opt, class Options>
void expect_group_rates(const Options& options) {
  Opt optimizer = with_two_groups<Opt>(options);
  LrScheduler scheduler(optimizer, lr::sequence({lr::warm_up(2, 0.5), lr::exponential(0.5)}, {2}));
  for (const double factor : {0.5, 0.75, 1.0, 0.5, 0.25}) {
    EXPECT_THAT(scheduler.learning_rates(),
                ElementsAre(DoubleEq(0.1 * factor), DoubleEq(0.02 * factor)));
    scheduler.step();
  }
  optimizer.add_param_group({{leaf({1})}});  // its base is the default
  const double added = optimizer.defaults().get_lr();
  scheduler.set_steps(3);
  EXPECT_THAT(scheduler.learning_rates(),
              ElementsAre(DoubleEq(0.05), DoubleEq(0.01), DoubleEq(added / 2)));
}

TEST(LrScheduler, GroupsOfEachOptimizer) {
  expect_group_rates<optim::SGD>(optim::SGDOptions(1));
  expect_group_rates<optim::Adam>(optim::AdamOptions(1));
  expect_group_rates<optim::AdamW>(optim::AdamWOptions(1));
  expect_group_rates<optim::Adagrad>(optim::AdagradOptions(1));
  expect_group_rates<optim::RMSprop>(optim::RMSpropOptions(1));
  expect_group_rates<Lars>(LarsOptions(1));
  expect_group_rates<Lamb>(LambOptions(1));
}

TEST(LrScheduler, ByEpochAndByGroup) {
  auto optimizer = with_two_groups<optim::SGD>(optim::SGDOptions(1));
  LrScheduler scheduler(optimizer, std::vector{lr::polynomial(4), lr::step_decay(1, 0.5)},
                        {.steps_per_unit = 10});
  scheduler.set_steps(15);
  EXPECT_EQ(scheduler.position(), 1.5);
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(DoubleEq(0.0625), DoubleEq(0.01)));
  auto other = with_two_groups<optim::SGD>(optim::SGDOptions(1));
  LrScheduler whole(other, lr::polynomial(4), {.steps_per_unit = 10, .whole_units = true});
  for (int step = 0; step < 19; ++step) whole.step();
  EXPECT_EQ(whole.steps(), 19);
  EXPECT_THAT(whole.learning_rates(), ElementsAre(DoubleEq(0.075), DoubleEq(0.015)));
}

TEST(LrScheduler, Momentum) {
  const LrSchedulerOptions options{
      .momentum = lr::one_cycle_momentum({.length = 10, .peak = 5, .linear = true}, 0.9, 0.8)};
  const auto momentum_at = [&](optim::Optimizer& optimizer, int64_t steps) {
    LrScheduler scheduler(optimizer, lr::constant(), options);
    scheduler.set_steps(steps);
    const auto& used = optimizer.param_groups()[1].options();
    if (const auto* sgd = dynamic_cast<const optim::SGDOptions*>(&used)) return sgd->momentum();
    if (const auto* lars = dynamic_cast<const LarsOptions*>(&used)) return lars->momentum();
    const auto& adam = dynamic_cast<const optim::AdamOptions&>(used);
    EXPECT_EQ(std::get<1>(adam.betas()), 0.999);
    return std::get<0>(adam.betas());
  };
  auto sgd = with_two_groups<optim::SGD>(optim::SGDOptions(1).momentum(0.5));
  auto adam = with_two_groups<optim::Adam>(optim::AdamOptions(1));
  auto lars = with_two_groups<Lars>(LarsOptions(1));
  EXPECT_DOUBLE_EQ(momentum_at(sgd, 5), 0.8);
  EXPECT_DOUBLE_EQ(momentum_at(adam, 0), 0.9);
  EXPECT_DOUBLE_EQ(momentum_at(lars, 7), 0.84);
  auto adagrad = with_two_groups<optim::Adagrad>(optim::AdagradOptions(1));
  EXPECT_THAT(error_of([&] { LrScheduler(adagrad, lr::constant(), options); }),
              HasSubstr("AdagradOptions is not known"));
}

TEST(LrScheduler, GoesOnFromAnArchive) {
  const auto make = [] { return with_two_groups<optim::SGD>(optim::SGDOptions(1)); };
  auto first = make();
  LrScheduler saved(first, lr::cosine(10), {.steps_per_unit = 4});
  saved.set_steps(18);
  std::stringstream of_scheduler, of_optimizer, again;
  ::torch::save(saved, of_scheduler);
  ::torch::save(saved, again);
  ::torch::save(first, of_optimizer);

  // A program that makes its scheduler last takes the learning rates of the archive for the base.
  auto second = make();
  ::torch::load(second, of_optimizer);
  LrScheduler loaded(second, lr::cosine(10), {.steps_per_unit = 4});
  ::torch::load(loaded, of_scheduler);
  EXPECT_EQ(loaded.steps(), 18);
  EXPECT_EQ(loaded.learning_rates(), saved.learning_rates());
  EXPECT_THAT(loaded.base_learning_rates(), ElementsAre(0.1, 0.02));

  // Twice as many ranks: half as many steps in an epoch.
  auto third = make();
  LrScheduler wider(third, lr::cosine(10), {.steps_per_unit = 2});
  ::torch::load(wider, again);
  EXPECT_EQ(wider.steps(), 9);
  EXPECT_EQ(wider.position(), 4.5);
  EXPECT_EQ(wider.learning_rates(), saved.learning_rates());
}

TEST(LrScheduler, WrongUse) {
  auto optimizer = with_two_groups<optim::SGD>(optim::SGDOptions(1));
  EXPECT_THAT(error_of([&] { LrScheduler(optimizer, std::vector(3, lr::constant())); }),
              HasSubstr("3 schedules for 2 parameter groups"));
  EXPECT_THAT(error_of([&] { LrScheduler(optimizer, lr::constant(), {.steps_per_unit = 0}); }),
              HasSubstr("steps_per_unit is 0"));
  LrScheduler scheduler(optimizer, [](double position) { return 2 - position; });
  scheduler.set_steps(1);
  EXPECT_THAT(error_of([&] { scheduler.set_steps(3); }),
              HasSubstr("group 0 gives -1 at position 3"));
  EXPECT_EQ(scheduler.steps(), 1);
  EXPECT_THAT(scheduler.learning_rates(), ElementsAre(0.1, 0.02));

  std::stringstream of_tensor, of_scheduler;
  ::torch::save(at::ones({2}), of_tensor);
  EXPECT_THAT(error_of([&] { ::torch::load(scheduler, of_tensor); }), HasSubstr("no state"));
  ::torch::save(scheduler, of_scheduler);
  optim::SGD single({leaf({1})}, 1.0);
  LrScheduler smaller(single, lr::constant());
  EXPECT_THAT(error_of([&] { ::torch::load(smaller, of_scheduler); }),
              HasSubstr("2 parameter groups, but this one has 1"));
  EXPECT_THAT(smaller.base_learning_rates(), ElementsAre(1.0));
}

// A whole training: the learning rate of each step is what the formula says, on all ranks.
TEST(LrScheduler, NRanksAgainstOneProcess) {
  const auto options = optim::SGDOptions(0.1).momentum(0.9);
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), options);
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), options), *net);
  LrScheduler scheduler(optimizer, lr::sequence({lr::warm_up(5, 0.1), lr::cosine(15)}, {5}));
  for (int step = 0; step < kSteps; ++step) {
    const double factor =
        step < 5 ? 0.1 + 0.9 * step / 5 : (1 + std::cos(M_PI * (step - 5) / 15)) / 2;
    plain.param_groups()[0].options().set_lr(0.1 * factor);
    plain.zero_grad();
    loss_of(alone, batch_of(step, at::kDouble)).backward();
    plain.step();
    optimizer.zero_grad();
    loss_of(net, shard_of(batch_of(step, at::kDouble))).backward();
    optimizer.step();
    scheduler.step();
  }
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *alone, 1e-10);
}

using Values = std::vector<double>;

Values values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).flatten().contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

double norm_of(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

// You et al. 2017, equation 6 and algorithm 1, for one layer.
struct LarsOracle {
  Values w, v = Values(w.size());
  double trust = 0.02, decay = 0.1, m = 0.9;
  bool adapt = true;

  void step(double lr, const Values& g) {
    double rate = trust * norm_of(w) / (norm_of(g) + decay * norm_of(w));
    if (!adapt || norm_of(w) == 0) rate = 1;
    for (size_t i = 0; i < w.size(); ++i) {
      v[i] = m * v[i] + lr * rate * (g[i] + decay * w[i]);
      w[i] -= v[i];
    }
  }
};

// You et al. 2019, algorithm 2, for one layer.
struct LambOracle {
  Values w, m = Values(w.size()), v = Values(w.size());
  double decay = 0.1, largest = 2;
  bool adapt = true;
  int t = 0;

  void step(double lr, const Values& g) {
    ++t;
    Values u(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      m[i] = 0.8 * m[i] + 0.2 * g[i];
      v[i] = 0.95 * v[i] + 0.05 * g[i] * g[i];
      const double first = m[i] / (1 - std::pow(0.8, t)), second = v[i] / (1 - std::pow(0.95, t));
      u[i] = first / (std::sqrt(second) + 1e-6) + decay * w[i];
    }
    double ratio = std::min(norm_of(w), largest) / norm_of(u);
    if (!adapt || norm_of(w) == 0) ratio = 1;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= lr * ratio * u[i];
  }
};

// Layers of several shapes, one of zeros, one that is not adapted; a learning rate that changes.
template <class Opt, class Oracle, class Options>
void compare_with_oracle(Options options, at::ScalarType dtype, double tolerance) {
  ::torch::manual_seed(3);
  std::vector<at::Tensor> layers;
  for (const at::Tensor& start :
       {at::randn({3, 4}), at::randn({5}).mul_(3), at::zeros({2, 2}), at::randn({7})}) {
    layers.push_back(start.to(dtype).requires_grad_());
  }
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>(layers.begin(), layers.end() - 1));
  auto plain = options;
  plain.adapt(false);
  groups.emplace_back(std::vector<at::Tensor>{layers.back()}, std::make_unique<Options>(plain));
  Opt optimizer(groups, options);
  std::vector<Oracle> oracles;
  for (const at::Tensor& layer : layers) oracles.push_back({.w = values_of(layer)});
  oracles.back().adapt = false;
  for (int step = 0; step < 12; ++step) {
    const double lr = 0.05 + 0.01 * step;
    for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
    for (size_t i = 0; i < layers.size(); ++i) {
      layers[i].mutable_grad() = at::randn_like(layers[i]);
      oracles[i].step(lr, values_of(layers[i].grad()));
    }
    optimizer.step();
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_THAT(values_of(layers[i]),
                  testing::Pointwise(testing::DoubleNear(tolerance), oracles[i].w))
          << "layer " << i << ", step " << step;
    }
  }
}

LarsOptions lars_options() {
  return LarsOptions(0.05).weight_decay(0.1).trust_coefficient(0.02).momentum_correction(false);
}
LambOptions lamb_options() {
  return LambOptions(0.05).weight_decay(0.1).betas({0.8, 0.95}).largest_norm(2);
}

TEST(Lars, AsInThePaper) {
  compare_with_oracle<Lars, LarsOracle>(lars_options(), at::kDouble, 1e-13);
  compare_with_oracle<Lars, LarsOracle>(lars_options(), at::kFloat, 1e-5);
}

TEST(Lamb, AsInThePaper) {
  compare_with_oracle<Lamb, LambOracle>(lamb_options(), at::kDouble, 1e-13);
  compare_with_oracle<Lamb, LambOracle>(lamb_options(), at::kFloat, 1e-5);
}

// SGD of LibTorch has no lr in its momentum. With the correction Lars makes equal steps when lr
// changes (also from 0); without, it does not.
TEST(Lars, MomentumCorrection) {
  for (const bool correction : {true, false}) {
    const at::Tensor a = leaf({4}, at::kDouble), b = leaf({4}, at::kDouble);
    optim::SGD sgd({a}, optim::SGDOptions(1).momentum(0.9));
    Lars lars({b}, LarsOptions(1).adapt(false).momentum_correction(correction));
    for (const double lr : {0.0, 0.1, 0.5, 0.5, 0.2}) {
      sgd.param_groups()[0].options().set_lr(lr);
      lars.param_groups()[0].options().set_lr(lr);
      a.mutable_grad() = at::full({4}, 0.5, at::kDouble);
      b.mutable_grad() = at::full({4}, 0.5, at::kDouble);
      sgd.step();
      lars.step();
    }
    EXPECT_EQ(a.allclose(b, 1e-12, 1e-12), correction) << a << b;
  }
}

template <class Opt, class Options>
void compare_with_one_process(const Options& options, DistributedOptimizerOptions with = {}) {
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  Opt plain(alone->parameters(), options);
  with.bucket_bytes = 2000;
  with.first_bucket_bytes = 100;
  const bool in_closure = with.grad_scale != 1;
  DistributedOptimizer optimizer(Opt(net->parameters(), options), *net, with);
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    loss_of(alone, batch_of(step, at::kDouble)).backward();
    plain.step();
    const auto closure = [&] {
      optimizer.zero_grad();
      at::Tensor loss = loss_of(net, shard_of(batch_of(step, at::kDouble))) * with.grad_scale;
      loss.backward();
      return loss;
    };
    if (in_closure) {
      EXPECT_TRUE(optimizer.step(closure).defined());
    } else {
      closure();
      optimizer.step();
    }
  }
  expect_equal_on_all_ranks(*net);
  expect_same_parameters(*net, *alone, 1e-9);
}

TEST(LayerWiseOptimizers, NRanksAgainstOneProcess) {
  const auto lars = LarsOptions(1).weight_decay(0.01).trust_coefficient(0.02);
  const auto lamb = LambOptions(0.02).weight_decay(0.01);
  compare_with_one_process<Lars>(lars);
  compare_with_one_process<Lamb>(lamb);
  // With the closure, whose gradients are divided before the step.
  compare_with_one_process<Lars>(lars, {.grad_scale = 8});
  compare_with_one_process<Lamb>(lamb, {.wait_in = WaitIn::Step, .grad_scale = 8});
}

template <class Opt, class Options>
void expect_same_after_loading(const Options& options) {
  const auto start = [] { return at::arange(1, 7, at::kDouble).requires_grad_(); };
  const at::Tensor a = start(), b = start();
  const auto train_steps = [](Opt& optimizer, const at::Tensor& parameter, int begin, int end) {
    for (int step = begin; step < end; ++step) {
      optimizer.param_groups()[0].options().set_lr(0.1 + 0.1 * step);
      parameter.mutable_grad() = at::arange(step, step + 6, at::kDouble).cos_();
      optimizer.step();
    }
  };
  Opt straight({a}, options), half({b}, options), rest({b}, Options(7));
  train_steps(straight, a, 0, 6);
  train_steps(half, b, 0, 3);
  std::stringstream archive;
  ::torch::save(half, archive);
  ::torch::load(rest, archive);
  train_steps(rest, b, 3, 6);
  EXPECT_TRUE(a.equal(b)) << a << b;
}

TEST(LayerWiseOptimizers, GoOnFromAnArchive) {
  expect_same_after_loading<Lars>(LarsOptions(1).momentum(0.8).weight_decay(0.1).eps(1e-3));
  expect_same_after_loading<Lamb>(LambOptions(1).betas({0.5, 0.6}).largest_norm(3));
}

TEST(LayerWiseOptimizers, WrongUse) {
  const at::Tensor table = leaf({4, 2});
  ::torch::embedding(table, at::zeros({1}, at::kLong), -1, false, true).sum().backward();
  EXPECT_THAT(error_of([&] { Lars({table}, LarsOptions(1)).step(); }),
              HasSubstr("Lars: the gradient of a parameter of shape [4, 2] is sparse"));
  EXPECT_THAT(error_of([&] { Lamb({table}).step(); }), HasSubstr("is sparse"));
  EXPECT_THAT(error_of([&] { Lars({table}, LarsOptions(-1)); }), HasSubstr("Lars: lr is -1"));
  EXPECT_THAT(error_of([&] {
                Lamb({table}, LambOptions().betas({0.9, 1}));
              }),
              HasSubstr("Lamb: beta2 is 1"));
}

}  // namespace
}  // namespace horon::lr_test
