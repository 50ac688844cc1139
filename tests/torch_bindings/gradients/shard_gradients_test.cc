// Gradients that are reduced to the owners of their parameters alone, beside the same training with
// all reduced gradients on each rank.
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/gradients/shard_gradients_support.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/lr/ada_scale.h"
#include "horon/torch_bindings/session.h"

namespace horon::shard_gradients_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using test::error_of;
using testing::HasSubstr;

TEST(ShardGradients, TrainsToTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    auto pair = sgd(to_owners(), dtype);
    for (int step = 0; step < 6; ++step) {
      pair.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad(step % 2 == 0);
        step_on(net, optimizer, step);
      });
    }
    expect_same_bits(pair.net, pair.expected);
  }
  for (const FusedStep fused : {FusedStep::Never, FusedStep::WherePossible}) {
    auto pair = adam(to_owners({.fused_step = fused}));
    for (int step = 0; step < 6; ++step) {
      pair.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad();
        step_on(net, optimizer, step);
      });
    }
    expect_same_bits(pair.net, pair.expected);
    EXPECT_EQ(pair.optimizer.fused_step_refusal(), pair.whole.fused_step_refusal());
  }
}

// The owner sees the gradient that all ranks would see, and no other rank sees it.
TEST(ShardGradients, OneRankHasEachGradient) {
  auto pair = sgd(to_owners());
  pair.both([](Net& net, auto&) { loss_of(net, shard_of(batch_of(1, at::kFloat))).backward(); });
  const auto parameters = pair.expected->named_parameters();
  int64_t own = 0;
  for (const auto& item : pair.net->named_parameters()) {
    const at::Tensor& grad = item.value().grad();
    const at::Tensor& expected = parameters[item.key()].grad();
    EXPECT_EQ(sum_over_ranks(grad.defined() ? 1 : 0), expected.defined() ? 1 : 0) << item.key();
    if (!grad.defined()) continue;
    EXPECT_TRUE(grad.equal(expected)) << item.key();
    own += grad.numel();
  }
  EXPECT_GE(own, 1);  // each rank has some
  pair.both([](Net&, auto& optimizer) { optimizer.step(); });
  for (const auto& item : pair.net->named_parameters()) {
    const bool has_state = pair.optimizer.state().count(item.value().unsafeGetTensorImpl()) > 0;
    EXPECT_EQ(has_state, item.value().grad().defined()) << item.key();
  }
}

// Values of an earlier backward() stay in the owner's .grad, and count once.
TEST(ShardGradients, GradientsAddUp) {
  for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Sum}) {
    for (const bool average : {false, true}) {
      auto pair = sgd(to_owners(
          {.op = op, .backward_passes_per_step = 2, .average_aggregated_gradients = average}));
      for (int step = 0; step < 4; ++step) {
        pair.both([&](Net& net, auto& optimizer) {
          if (step != 1) optimizer.zero_grad(step == 2);  // else the step before counts on
          {
            const auto quiet = optimizer.no_sync();
            loss_of(net, shard_of(batch_of(step, at::kFloat))).backward();
          }
          loss_of(net, shard_of(batch_of(step + 10, at::kFloat))).backward();
          step_on(net, optimizer, step + 20);
        });
      }
      expect_same_parameters(*pair.net, *pair.expected, 2e-6);
      expect_equal_on_all_ranks(*pair.net);
    }
  }
  // Several rounds in a step, of which the second reaches some parameters only.
  auto pair = sgd(to_owners());
  for (int step = 0; step < 3; ++step) {
    pair.both([&](Net& net, auto& optimizer) {
      optimizer.zero_grad();
      loss_of(net, shard_of(batch_of(step, at::kFloat))).backward();
      (net->out->bias.sum() * (rank() + 1)).backward();
      optimizer.step();
    });
  }
  expect_same_parameters(*pair.net, *pair.expected, 2e-6);
}

TEST(ShardGradients, WeightsAndRanksWithoutSamples) {
  auto pair = sgd(to_owners());
  for (int step = 0; step < 4; ++step) {
    pair.both([&](Net& net, auto& optimizer) {
      if (step != 2) optimizer.zero_grad();
      const bool idle = rank() == step % size() && size() > 1;
      optimizer.set_weight(idle ? 0 : rank() + 1);
      step_on(net, optimizer, step, idle ? std::numeric_limits<double>::quiet_NaN() : 1);
    });
  }
  expect_same_parameters(*pair.net, *pair.expected, 2e-6);
  // A rank that runs no backward().
  pair.both([](Net& net, auto& optimizer) {
    optimizer.zero_grad();
    if (rank() != size() - 1 || size() == 1) {
      loss_of(net, shard_of(batch_of(9, at::kFloat))).backward();
    }
    optimizer.step();
  });
  expect_same_parameters(*pair.net, *pair.expected, 2e-6);
  expect_equal_on_all_ranks(*pair.net);
}

// The ranks use different parts of the model.
TEST(ShardGradients, GradientsThatSomeRanksHave) {
  const auto run = [](const DistributedOptimizerOptions& options) {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < 12; ++i) {
      parameters.push_back(at::full({i + 1}, 1.0 + i).set_requires_grad(true));
    }
    DistributedOptimizer optimizer(
        optim::AdamW(parameters, optim::AdamWOptions(0.1).weight_decay(0.1)), {}, options);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      at::Tensor loss = parameters[0].sum();
      for (int i = 1; i < 10; ++i) {  // nobody uses the last ones
        if ((i + step + rank()) % 3 == 0) loss = loss + parameters[i].square().sum() * (i + 1);
      }
      loss.backward();
      optimizer.step();
    }
    return parameters;
  };
  for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
    const std::vector<at::Tensor> got = run(to_owners({.wait_in = wait_in}));
    const std::vector<at::Tensor> expected = run(whole());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
    EXPECT_TRUE(got.back().equal(at::full({12}, 12.0)));
  }
}

// Several dtypes, complex numbers, no elements, a transposed one, a group that comes later, frozen
// parameters that are not for ever.
TEST(ShardGradients, AllKindsOfParameters) {
  const auto run = [](const DistributedOptimizerOptions& options) {
    std::vector<at::Tensor> parameters{at::ones({3, 4}).t().set_requires_grad(true),
                                       at::ones({}, at::kDouble).requires_grad_(),
                                       at::ones({0, 2}).set_requires_grad(true),
                                       at::ones({7}, at::kBFloat16).requires_grad_(),
                                       at::ones({5}, at::kHalf).requires_grad_(),
                                       at::ones({6}, at::kComplexFloat).requires_grad_(),
                                       at::ones({9})};
    DistributedOptimizer optimizer(optim::SGD(parameters, optim::SGDOptions(0.5).momentum(0.9)), {},
                                   options);
    const at::Tensor late = at::ones({6}).set_requires_grad(true);
    for (int step = 0; step < 4; ++step) {
      if (step == 1) parameters.back().set_requires_grad(true);
      if (step == 2) optimizer.add_param_group(optim::OptimizerParamGroup({late}));
      optimizer.zero_grad();
      at::Tensor loss = late.sum() + parameters[6].sum();
      for (int i = 0; i < 5; ++i) {
        loss = loss + parameters[i].sum().to(at::kFloat) * (i + rank() + 1);
      }
      loss = loss + at::real(parameters[5] * c10::complex<float>(1, 2)).sum() * (rank() + 1);
      loss.backward();
      optimizer.step();
    }
    parameters.push_back(late);
    return parameters;
  };
  const std::vector<at::Tensor> got = run(to_owners());
  const std::vector<at::Tensor> expected = run(whole());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
  EXPECT_FALSE(got.back().equal(at::ones({6})));
}

// Steps that depend on all gradients together.
TEST(ShardGradients, ClippedScaledAndSkippedSteps) {
  auto pair = sgd(to_owners({.grad_scale = 4, .skip_nonfinite = true, .clip_grad_norm = 0.05}));
  for (int step = 0; step < 3; ++step) {
    pair.both([&](Net& net, auto& optimizer) {
      optimizer.zero_grad();
      step_on(net, optimizer, step);
    });
    EXPECT_NEAR(*pair.optimizer.grad_norm(), *pair.whole.grad_norm(), 1e-12);
  }
  expect_same_parameters(*pair.net, *pair.expected, 1e-6);
  // One gradient of one rank is infinite.
  const at::Tensor before = pair.net->out->weight.detach().clone();
  pair.both([](Net& net, auto& optimizer) {
    optimizer.zero_grad();
    const float bad = rank() == size() - 1 ? std::numeric_limits<float>::infinity() : 1;
    (loss_of(net, shard_of(batch_of(4, at::kFloat))) + net->out->bias.sum() * bad).backward();
    optimizer.step();
    EXPECT_TRUE(optimizer.step_skipped());
  });
  EXPECT_TRUE(pair.net->out->weight.equal(before));
  auto values = sgd(to_owners({.clip_grad_value = 0.001}));
  values.both([](Net& net, auto& optimizer) { step_on(net, optimizer, 1); });
  expect_same_bits(values.net, values.expected);
}

TEST(ShardGradients, WithAGradScaler) {
  for (const bool unscales : {false, true}) {
    auto pair = adam(to_owners());
    std::vector<std::pair<double, bool>> seen;
    pair.both([&](Net& net, auto& optimizer) {
      amp::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
      for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        at::Tensor loss = loss_of(net, shard_of(batch_of(step, at::kFloat)));
        const float bad = rank() == 0 ? std::numeric_limits<float>::infinity() : 1;
        if (step == 3) loss = loss + net->out->bias.sum() * bad;
        scaler.scale(loss).backward();
        if (unscales) scaler.unscale_(optimizer);
        const bool made = scaler.step(optimizer);
        EXPECT_EQ(made, step != 3);
        scaler.update();
        seen.emplace_back(scaler.get_scale(), made);
      }
    });
    for (size_t i = 0; i < seen.size() / 2; ++i) EXPECT_EQ(seen[i], seen[i + seen.size() / 2]) << i;
    expect_same_bits(pair.net, pair.expected);
  }
}

TEST(ShardGradients, OnAProcessSet) {
  if (size() < 3) GTEST_SKIP() << "needs 3 ranks";
  const ProcessSet set = add_process_set({0, size() - 1});
  {
    auto options = to_owners();
    options.process_set = set;
    auto pair = sgd(options);
    for (int step = 0; step < 3; ++step) {
      pair.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad();
        step_on(net, optimizer, step);
      });
    }
    expect_same_bits(pair.net, pair.expected);
  }
  remove_process_set(set);
}

TEST(ShardGradients, WhatItDoesNotGoWith) {
  Net net = make_net(at::kFloat);
  const auto refusal = [&](const DistributedOptimizerOptions& options) {
    return error_of([&] {
      const DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.1), *net, options);
    });
  };
  EXPECT_THAT(refusal({.shard_gradients = true}), HasSubstr("without shard_optimizer_state"));
  EXPECT_THAT(refusal(to_owners({.op = ReduceOp::Max})), HasSubstr("needs op Average or Sum"));
  EXPECT_THAT(refusal(to_owners({.compression = Compression::Int8})),
              HasSubstr("shard_gradients doesn't work with compression to int8"));
  EXPECT_THAT(refusal(to_owners({.sparse_as_dense = false})),
              HasSubstr("shard_gradients doesn't work with sparse_as_dense = false"));
  EXPECT_THAT(
      error_of([&] { GradientReducer(net->named_parameters(), {.shard_gradients = true}); }),
      HasSubstr("a GradientReducer makes no steps"));
  if (size() == 1) return;  // it has all gradients
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.1), *net, to_owners());
  EXPECT_THAT(error_of([&] { optimizer.after_bucket([](const BucketView&) {}); }),
              HasSubstr("after_bucket() of \"gradients."));
  EXPECT_THAT(error_of([&] { AdaScale(optimizer, lr::constant(), {.steps_per_unit = 1}); }),
              HasSubstr("AdaScale: shard_gradients gives each rank only some"));
}

TEST(ShardGradients, RanksThatDifferAreTold) {
  if (size() == 1) GTEST_SKIP() << "one rank agrees with itself";
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.1), *net,
                                 rank() == 0 ? to_owners() : sharded());
  const std::string error = error_of([&] { step_on(net, optimizer, 0); });
  EXPECT_THAT(error, HasSubstr("gradients sharded"));
}

// A rank whose step() throws before it has found the norm keeps nobody waiting.
TEST(ShardGradients, AStepThatOneRankDoesNotMake) {
  if (size() == 1) GTEST_SKIP() << "there is nobody else";
  for (const bool clips : {false, true}) {
    DistributedOptimizerOptions options = to_owners({.wait_in = WaitIn::Step});
    if (clips) options.clip_grad_norm = 0.5;
    auto pair = sgd(options);
    std::vector<at::Tensor>& parameters = pair.optimizer.param_groups().front().params();
    const std::vector<at::Tensor> right = parameters;
    loss_of(pair.net, shard_of(batch_of(0, at::kFloat))).backward();
    if (rank() == 0) parameters.push_back(at::ones({4}).set_requires_grad(true) * 2);  // no leaf
    EXPECT_THAT(error_of([&] { pair.optimizer.step(); }), HasSubstr("not a leaf"));
    parameters = right;
    expect_same_bits(pair.net, pair.expected);
    for (int step = 1; step < 3; ++step) {
      pair.both([&](Net& net, auto& optimizer) {
        optimizer.zero_grad();
        step_on(net, optimizer, step);
      });
    }
    expect_same_parameters(*pair.net, *pair.expected, 1e-6);
  }
}

}  // namespace
}  // namespace horon::shard_gradients_test
