// Optimizer state that is shared out over the ranks: steps, and what goes wrong with them, beside
// the same optimizer with all of its state on each rank.
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/support/statistics_between_collectives.h"
#include "horon/tests/torch_bindings/gradients/sharded_support.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/session.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::state_shards_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using test::error_of;
using testing::HasSubstr;

TEST(StateShards, AFusedStepMovesOwnParameters) {
  Net net = make_net(at::kFloat);
  auto options = sharded({.fused_step = FusedStep::WherePossible});
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, options);
  Net expected = make_net(at::kFloat);
  options.shard_optimizer_state = false;
  DistributedOptimizer unsharded(optim::Adam(expected->parameters(), 1e-2), *expected, options);
  train_steps(net, optimizer, 0, 5);
  train_steps(expected, unsharded, 0, 5);
  EXPECT_EQ(optimizer.fused_step_refusal(), unsharded.fused_step_refusal());
  expect_same_bits(net, expected);
}

// Each rank owns about as many bytes.
TEST(StateShards, AreOfAboutTheSameSize) {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 20; ++i) parameters.push_back(at::ones({100 + i}).set_requires_grad(true));
  const int64_t all = 20 * 100 + 190;
  DistributedOptimizer optimizer(optim::Adam(parameters, 1e-2), {}, sharded());
  for (const at::Tensor& parameter : parameters)
    parameter.mutable_grad() = at::ones_like(parameter);
  optimizer.step();
  int64_t own = 0;
  for (const at::Tensor& parameter : parameters) {
    if (optimizer.state().count(parameter.unsafeGetTensorImpl()) > 0) own += parameter.numel();
  }
  EXPECT_NEAR(own, all / size(), 120);
  EXPECT_EQ(sum_over_ranks(own), all);
}

// Collectives that repeat in each step are frozen in the end: each name stands for one collective.
TEST(StateShards, AreNotNegotiatedInEachStep) {
  for (const bool gradients : {false, true}) {
    auto options = sharded({.clip_grad_norm = 1.0});
    options.shard_gradients = gradients;
    Net net = make_net(at::kFloat);
    DistributedOptimizer optimizer(optim::SGD(net->parameters(), 1e-2), *net, options);
    int64_t negotiated = 1;
    for (int step = 0; step < 1000 && negotiated > 0; step += 5) {
      const Statistics before = test::statistics_between_collectives();
      train_steps(net, optimizer, step, step + 5);
      const Statistics after = test::statistics_between_collectives();
      negotiated =
          sum_over_ranks(static_cast<int64_t>(after.negotiated_starts - before.negotiated_starts));
    }
    EXPECT_EQ(negotiated, 0) << gradients;
  }
}

// More parameters than travel at once, some of them too long to travel with others.
TEST(StateShards, ManyAndLongParameters) {
  const auto run = [](bool shards) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 60; ++i) {
      const int64_t elements = i % 20 == 7 ? 700'000 : 80'000 + i;
      parameters.push_back(at::full({elements}, i + 1.0, at::kFloat).set_requires_grad(true));
    }
    DistributedOptimizerOptions options;
    options.shard_optimizer_state = shards;
    DistributedOptimizer optimizer(optim::SGD(parameters, optim::SGDOptions(0.1).momentum(0.9)), {},
                                   options);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      at::Tensor loss = at::zeros({});
      for (const at::Tensor& parameter : parameters) loss = loss + parameter.square().sum();
      (loss * (rank() + 1)).backward();
      optimizer.step();
    }
    return parameters;
  };
  const std::vector<at::Tensor> got = run(true);
  const std::vector<at::Tensor> expected = run(false);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

TEST(StateShards, MoreRanksThanParameters) {
  const at::Tensor only = at::ones({3}).set_requires_grad(true);
  DistributedOptimizer optimizer(optim::Adam({only}, 0.5), {}, sharded());
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    only.sum().backward();
    optimizer.step();
  }
  EXPECT_LT(only.max().item<float>(), 0.1F);
}

// If only the ranks that own dense parameters fuse a step, the replicas do not count as different.
TEST(StateShards, StepsThatAreFusedOnSomeRanks) {
  const at::Tensor dense = at::ones({300}).set_requires_grad(true);
  const at::Tensor rows = at::ones({20, 4}).set_requires_grad(true);
  DistributedOptimizer optimizer(
      optim::Adagrad({dense, rows}, 0.1), {{"dense", dense}, {"rows", rows}},
      sharded({.sparse_as_dense = false, .fused_step = FusedStep::WherePossible}));
  const at::Tensor picked = at::tensor({3, 7, 3});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    (dense.sum() + at::embedding(rows, picked, -1, false, /*sparse=*/true).sum()).backward();
    ASSERT_TRUE(rows.grad().is_sparse());
    optimizer.step();
  }
  EXPECT_LT(dense.max().item<float>(), 1.0F);
  EXPECT_LT(rows[3].max().item<float>(), 1.0F);
  EXPECT_EQ(rows[4].max().item<float>(), 1.0F);
}

// Gradients are seen scaled and clipped by all ranks, also those of parameters of other ranks.
TEST(StateShards, ScaledClippedAndSkippedSteps) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(
      optim::SGD(net->parameters(), optim::SGDOptions(0.1).momentum(0.9)), *net,
      sharded({.grad_scale = 4, .skip_nonfinite = true, .clip_grad_norm = 0.5}));
  Net expected = make_net(at::kFloat);
  auto options = sharded({.grad_scale = 4, .skip_nonfinite = true, .clip_grad_norm = 0.5});
  options.shard_optimizer_state = false;
  DistributedOptimizer unsharded(
      optim::SGD(expected->parameters(), optim::SGDOptions(0.1).momentum(0.9)), *expected, options);
  train_steps(net, optimizer, 0, 3);
  train_steps(expected, unsharded, 0, 3);
  EXPECT_EQ(optimizer.grad_norm(), unsharded.grad_norm());
  const auto parameters = expected->named_parameters();
  for (const auto& item : net->named_parameters()) {
    const at::Tensor& grad = item.value().grad();
    ASSERT_EQ(grad.defined(), parameters[item.key()].grad().defined()) << item.key();
    EXPECT_TRUE(!grad.defined() || grad.equal(parameters[item.key()].grad())) << item.key();
  }
  const at::Tensor before = net->out->weight.detach().clone();
  optimizer.zero_grad();
  (loss_of(net, shard_of(batch_of(4, at::kFloat))) * std::numeric_limits<float>::infinity())
      .backward();
  optimizer.step();
  EXPECT_TRUE(optimizer.step_skipped());
  EXPECT_TRUE(net->out->weight.equal(before));
  expect_same_bits(net, expected);
}

TEST(StateShards, WithAGradScaler) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
  Net expected = make_net(at::kFloat);
  DistributedOptimizer unsharded(optim::Adam(expected->parameters(), 1e-2), *expected, whole());
  amp::GradScaler scaler;
  amp::GradScaler other;
  for (int step = 0; step < 4; ++step) {
    const Batch mine = shard_of(batch_of(step, at::kFloat));
    optimizer.zero_grad();
    scaler.scale(loss_of(net, mine)).backward();
    scaler.step(optimizer);
    scaler.update();
    unsharded.zero_grad();
    other.scale(loss_of(expected, mine)).backward();
    other.step(unsharded);
    other.update();
  }
  expect_same_bits(net, expected);
}

// Several dtypes, no elements, a parameter that nobody uses, and a group that comes later.
TEST(StateShards, AllKindsOfParameters) {
  const auto run = [](const DistributedOptimizerOptions& options) {
    std::vector<at::Tensor> parameters{at::ones({3, 4}).t().set_requires_grad(true),
                                       at::ones({}, at::kDouble).set_requires_grad(true),
                                       at::ones({0, 2}).set_requires_grad(true),
                                       at::ones({7}, at::kBFloat16).set_requires_grad(true),
                                       at::ones({5}).set_requires_grad(true)};
    DistributedOptimizer optimizer(optim::SGD(parameters, optim::SGDOptions(0.5).momentum(0.9)), {},
                                   options);
    const at::Tensor late = at::ones({6}).set_requires_grad(true);
    for (int step = 0; step < 4; ++step) {
      if (step == 2) optimizer.add_param_group(optim::OptimizerParamGroup({late}));
      optimizer.zero_grad(step % 2 == 0);
      at::Tensor loss = late.sum();
      for (int i = 0; i < 4; ++i)
        loss = loss + parameters[i].sum().to(at::kFloat) * (i + rank() + 1);
      loss.backward();
      optimizer.step();
    }
    parameters.push_back(late);
    return parameters;
  };
  const std::vector<at::Tensor> got = run(sharded());
  const std::vector<at::Tensor> expected = run(whole());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
  EXPECT_FALSE(got.back().equal(at::ones({6})));
}

TEST(StateShards, OnAProcessSet) {
  if (size() < 3) GTEST_SKIP() << "needs 3 ranks";
  const ProcessSet set = add_process_set({0, size() - 1});
  Net net = make_net(at::kFloat);
  DistributedOptimizerOptions options = sharded();
  options.process_set = set;
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, options);
  Net expected = make_net(at::kFloat);
  options.shard_optimizer_state = false;
  DistributedOptimizer unsharded(optim::Adam(expected->parameters(), 1e-2), *expected, options);
  EXPECT_EQ(ranks_of_state(optimizer), set.includes_me() ? set.ranks() : std::vector<int>());
  train_steps(net, optimizer, 0, 3);
  train_steps(expected, unsharded, 0, 3);
  expect_same_bits(net, expected);
  if (set.includes_me()) {
    EXPECT_THAT(error_of([&] { optimizer.consolidate_state(1); }),
                HasSubstr("rank 1 is not in the process set, whose ranks are"));
  }
  remove_process_set(set);
}

// An optimizer of a program's own that fails on one rank.
class FailsOnce : public optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    if (fails) throw std::runtime_error("the disk is full");
    return SGD::step(std::move(closure));
  }
  bool fails = false;
};

TEST(StateShards, AStepThatFailsOnOneRankFailsOnAll) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(FailsOnce(net->parameters(), 0.1), *net, sharded());
  train_steps(net, optimizer, 0, 1);
  optimizer.fails = rank() == 0;
  std::string what;
  try {
    train_steps(net, optimizer, 1, 2);
  } catch (const std::exception& error) {
    what = error.what();
  }
  EXPECT_THAT(what, HasSubstr("the disk is full"));
  EXPECT_TRUE(rank() == 0 || what.find("rank 0") != std::string::npos) << what;
  for (const auto& item : net->named_parameters()) {
    EXPECT_EQ(item.value().grad().defined(), item.key() != "unused" && item.key() != "empty");
  }
  optimizer.fails = false;
  broadcast_parameters(*net, 0);
  train_steps(net, optimizer, 2, 3);
  expect_equal_on_all_ranks(*net);
}

TEST(StateShards, WhereItCannotBe) {
  Net net = make_net(at::kFloat);
  EXPECT_THAT(error_of([&] {
                DistributedOptimizer(optim::LBFGS(net->parameters(), optim::LBFGSOptions(1)), *net,
                                     sharded());
              }),
              HasSubstr("shard_optimizer_state doesn't work with LBFGS"));
  optim::SGD held(net->parameters(), 0.1);
  EXPECT_THAT(
      error_of(
          [&] { DistributedOptimizer(static_cast<optim::Optimizer&>(held), *net, sharded()); }),
      HasSubstr("shard_optimizer_state doesn't work with an optimizer that the program holds"));
  EXPECT_THAT(error_of([&] { GradientReducer(net->named_parameters(), sharded()); }),
              HasSubstr("a GradientReducer makes no steps"));
}

TEST(StateShards, RanksThatDifferAreTold) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  Net net = make_net(at::kFloat);
  auto options = sharded();
  options.shard_optimizer_state = rank() == 0;
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, options);
  EXPECT_THAT(error_of([&] { train_steps(net, optimizer, 0, 1); }),
              HasSubstr("optimizer state sharded"));
}

TEST(StateShards, ARankThatHasJoinedCannotMoveItsParameters) {
  if (size() == 1) GTEST_SKIP() << "nobody else joins";
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 1e-2), *net, sharded());
  train_steps(net, optimizer, 0, 1);
  if (rank() != 0) {
    EXPECT_THAT(error_of([&] { train_steps(net, optimizer, 1, 2); }), HasSubstr("called join()"));
  }
  join();
  broadcast_parameters(*net, size() - 1);
  train_steps(net, optimizer, 2, 3);
  expect_equal_on_all_ranks(*net);
}

}  // namespace
}  // namespace horon::state_shards_test
