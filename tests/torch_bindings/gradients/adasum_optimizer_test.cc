// Steps that Adasum combines: where each rank's step and the formula are known.
#include "horon/torch_bindings/gradients/adasum_optimizer.h"

#include <cmath>
#include <limits>
#include <utility>

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/session.h"

namespace horon::adasum_optimizer_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using test::error_of;
using testing::HasSubstr;

at::Tensor rows_of(const at::Tensor& tensor) { return allgather(tensor.detach().unsqueeze(0)); }

void expect_the_same_on_all_ranks(const at::Tensor& tensor) {
  const at::Tensor rows = rows_of(tensor);
  for (int64_t row = 1; row < rows.size(0); ++row) EXPECT_TRUE(rows[row].equal(rows[0])) << row;
}

TEST(AllreduceByAdasum, EachTensorIsAVector) {
  // Orthogonal in one tensor, equal in the other: in one fused vector they would be neither.
  at::Tensor axis = at::zeros({size()}, at::kDouble);
  axis[rank()] = 3;
  const at::Tensor same = at::arange(5, at::kDouble);
  const Handle first = allreduce_async(axis, {.name = "axis", .op = ReduceOp::Adasum});
  const Handle second = allreduce_async(same, {.name = "same", .op = ReduceOp::Adasum});
  EXPECT_TRUE(first.wait().equal(at::full({size()}, 3.0, at::kDouble)));
  EXPECT_TRUE(second.wait().equal(same));
}

TEST(AllreduceByAdasum, AScalarNothingAndStrides) {
  EXPECT_EQ(allreduce(at::scalar_tensor(2.0), {.op = ReduceOp::Adasum}).item<double>(), 2.0);
  EXPECT_EQ(allreduce(at::zeros({0, 3}), {.op = ReduceOp::Adasum}).numel(), 0);
  const at::Tensor turned = at::arange(6, at::kFloat).view({2, 3}).t();
  EXPECT_TRUE(allreduce(turned, {.op = ReduceOp::Adasum}).equal(turned));
  const at::Tensor half = at::full({7}, 0.5, at::kHalf);
  EXPECT_TRUE(allreduce(half, {.op = ReduceOp::Adasum}).equal(half));
  const at::Tensor wire = at::full({7}, 0.5, at::kFloat);
  EXPECT_TRUE(
      allreduce(wire, {.op = ReduceOp::Adasum, .compression = Compression::Float16}).equal(wire));
}

TEST(AllreduceByAdasum, WhatHasNone) {
  EXPECT_THAT(error_of([] { (void)allreduce(at::ones({2}, at::kInt), {.op = ReduceOp::Adasum}); }),
              HasSubstr("Adasum is for floating dtypes"));
  const auto not_for_these = HasSubstr("Adasum is for allreduce, not for reducescatter or reduce");
  EXPECT_THAT(error_of([] { (void)reducescatter(at::ones({4}), {.op = ReduceOp::Adasum}); }),
              not_for_these);
  EXPECT_THAT(error_of([] { (void)reduce(at::ones({4}), {.op = ReduceOp::Adasum}); }),
              not_for_these);
  const at::Tensor weight = at::ones({2}).set_requires_grad(true);
  EXPECT_THAT(error_of([&] {
                DistributedOptimizer(optim::SGD({weight}, optim::SGDOptions(0.1)),
                                     {{"weight", weight}}, {.op = ReduceOp::Adasum});
              }),
              HasSubstr("use horon::AdasumOptimizer"));
}

// The ranks' moves are orthogonal, so the sum holds each of them.
TEST(AdasumOptimizer, AddsStepsThatAreOrthogonal) {
  const at::Tensor weight = at::ones({size(), 2}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({weight}, optim::SGDOptions(0.5)));
  weight[rank()].sum().backward();
  optimizer.step();
  EXPECT_TRUE(weight.detach().equal(at::full({size(), 2}, 0.5))) << weight;
}

// A parameter that stands in the optimizer twice is stepped twice, and its move reduced once.
TEST(AdasumOptimizer, ATiedParameterMovesOnce) {
  const at::Tensor weight = at::ones({size(), 2}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({weight, weight}, optim::SGDOptions(0.5)));
  weight[rank()].sum().backward();
  optimizer.step();
  EXPECT_TRUE(weight.detach().equal(at::zeros({size(), 2}))) << weight;
}

TEST(AdasumOptimizer, EqualStepsAreTheStepOfOneRank) {
  Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
  optim::AdamW plain(alone->parameters(), optim::AdamWOptions(0.01));
  AdasumOptimizer optimizer(optim::AdamW(net->parameters(), optim::AdamWOptions(0.01)));
  for (int step = 0; step < 5; ++step) {
    const Batch batch = batch_of(step, at::kDouble);
    for (auto& [model, steps] : {std::pair<Net&, optim::Optimizer&>(alone, plain),
                                 std::pair<Net&, optim::Optimizer&>(net, optimizer)}) {
      steps.zero_grad();
      ::torch::cross_entropy_loss(model->forward(batch.images), batch.labels).backward();
      steps.step();
    }
  }
  const auto got = net->parameters(), want = alone->parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i], want[i], 1e-10, 1e-12)) << i;
  }
}

TEST(AdasumOptimizer, RanksStayEqualAndTheLossFalls) {
  Net net = make_net(at::kFloat);
  AdasumOptimizer optimizer(optim::SGD(net->parameters(), optim::SGDOptions(0.05).momentum(0.9)));
  const Batch all = batch_of(0, at::kFloat);
  const Batch mine = shard_of(all);
  const auto loss_of = [&](const Batch& batch) {
    return ::torch::cross_entropy_loss(net->forward(batch.images), batch.labels);
  };
  const double before = loss_of(all).item<double>();
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      at::Tensor own = loss_of(mine);
      own.backward();
      return own;
    });
    EXPECT_TRUE(loss.defined());
  }
  for (const at::Tensor& parameter : net->parameters()) expect_the_same_on_all_ranks(parameter);
  EXPECT_LT(loss_of(all).item<double>(), before / 2);
}

TEST(AdasumOptimizer, AStepThatFailsLeavesTheParameters) {
  if (size() == 1) GTEST_SKIP() << "nobody to differ from";
  const at::Tensor weight = at::ones({rank() == 0 ? 3 : 4}).set_requires_grad(true);
  // The reduction of `long_one` goes on after that of `weight` has failed.
  const at::Tensor long_one = at::ones({1 << 20}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({weight, long_one}, optim::SGDOptions(0.5)));
  (weight.sum() + long_one.sum()).backward();
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("adasum.0"));
  barrier();
  EXPECT_TRUE(weight.detach().equal(at::ones_like(weight)));
  EXPECT_TRUE(long_one.detach().equal(at::ones_like(long_one)));
}

struct Interrupted : optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss = optim::SGD::step(std::move(closure));
    if (std::exchange(interrupts, false)) throw Error(ErrorCode::OperationFailed, "interrupted");
    return loss;
  }
  bool interrupts = false;
};

// The other ranks wait for the moves of the rank that throws. No rank has moved, and all make the
// next step together.
TEST(AdasumOptimizer, AStepThatThrowsOnOneRankIsMadeByNone) {
  const at::Tensor weight = at::ones({2}).set_requires_grad(true);
  Interrupted own({weight}, optim::SGDOptions(0.5));
  own.interrupts = rank() == size() - 1;
  AdasumOptimizer optimizer(std::move(own));
  weight.sum().backward();
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("interrupted"));
  EXPECT_TRUE(weight.detach().equal(at::ones({2})));
  optimizer.step();
  EXPECT_TRUE(at::allclose(weight.detach(), at::full({2}, 0.5F)));
  expect_the_same_on_all_ranks(weight);
}

TEST(AdasumOptimizer, WhatItRefuses) {
  const at::Tensor weight = at::ones({2}).set_requires_grad(true);
  const at::Tensor phases = at::ones({2}, at::kComplexFloat).set_requires_grad(true);
  EXPECT_THAT(error_of([&] {
                AdasumOptimizer(optim::SGD({weight, phases}, optim::SGDOptions(0.1)));
              }),
              AllOf(HasSubstr("parameter 1 is complex"), HasSubstr("an optimizer of their own")));
  EXPECT_THAT(error_of([&] {
                AdasumOptimizer(optim::SGD({weight}, optim::SGDOptions(0.1)),
                                {.compression = Compression::Int8});
              }),
              HasSubstr("compression is Int8"));
  AdasumOptimizer optimizer(optim::SGD({weight}, optim::SGDOptions(0.1)));
  optimizer.add_param_group(optim::OptimizerParamGroup({phases}));
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("parameter 1 is complex"));
}

// The rank's scaler leaves its step out. It takes part with no move, which counts for nothing.
TEST(AdasumOptimizer, ARankWithInfiniteGradientsMovesByTheOthers) {
  const at::Tensor weight = at::ones({size()}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({weight}, optim::SGDOptions(1)));
  amp::GradScaler scaler({.init_scale = 4});
  at::Tensor want = at::ones({size()});
  for (const int infinite : {0, size() - 1, size()}) {
    optimizer.zero_grad();
    const double slope = rank() == infinite ? std::numeric_limits<double>::infinity() : 1;
    scaler.scale(weight[rank()] * slope).backward();
    EXPECT_EQ(scaler.step(optimizer), rank() != infinite);
    scaler.update();
    want -= 1;
    if (infinite < size()) want[infinite] += 1;
    EXPECT_TRUE(weight.detach().equal(want)) << weight;
  }
}

TEST(AdasumOptimizer, OfTheLastRanks) {
  std::vector<int> ranks;
  for (int r = size() > 1 ? 1 : 0; r < size(); ++r) ranks.push_back(r);
  const ProcessSet last = add_process_set(ranks);
  const at::Tensor weight = at::ones({size()}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({weight}, optim::SGDOptions(1)), {.process_set = last});
  weight[rank()].backward();
  optimizer.step();
  at::Tensor want = at::ones({size()});
  if (last.includes_me()) {
    for (const int r : ranks) want[r] = 0;
  } else {
    want[rank()] = 0;
  }
  EXPECT_TRUE(weight.detach().equal(want)) << weight;
  remove_process_set(last);
}

// The other ranks have already begun the parameter behind the one that rank 0 refuses.
TEST(AdasumOptimizerAndSession, ANanThatOneRankFindsIsAnErrorOnAll) {
  shutdown();
  init({.set = {{"HORON_CHECK_FINITE", "1"}}});
  const at::Tensor first = at::ones({2}).set_requires_grad(true);
  const at::Tensor second = at::ones({3}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({first, second}, optim::SGDOptions(1)));
  const auto backward = [&](double slope) {
    optimizer.zero_grad();
    (first.sum() * slope + second.sum()).backward();
  };
  backward(rank() == 0 ? std::nan("") : 1);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("\"adasum.0\""));
  EXPECT_TRUE(second.detach().equal(at::ones({3}))) << second;
  backward(1);
  optimizer.step();
  EXPECT_TRUE(first.detach().equal(at::zeros({2}))) << first;
  EXPECT_TRUE(second.detach().equal(at::zeros({3}))) << second;
  shutdown();
  init();
}

TEST(AdasumOptimizer, OfSomeRanks) {
  const ProcessSet first = add_process_set({0});
  const at::Tensor weight = at::ones({3}).set_requires_grad(true);
  AdasumOptimizer optimizer(optim::SGD({weight}, optim::SGDOptions(0.5)), {.process_set = first});
  (weight.sum() * (rank() + 1)).backward();
  optimizer.step();
  EXPECT_TRUE(weight.detach().equal(at::full({3}, 1 - 0.5 * (rank() + 1))));
  remove_process_set(first);
}

}  // namespace
}  // namespace horon::adasum_optimizer_test
