// DistributedOptimizer with the fused step: training, what the ranks must do alike, and refusals.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/state/broadcast_state.h"

namespace horon::fused_training_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::HasSubstr;

struct DampedSgd : optim::SGD {
  using optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    return optim::SGD::step(std::move(closure));
  }
  int steps = 0;
};

// A derived class with a step() of its own is not fused.
TEST(FusedTraining, LeavesStepsOfDerivedClassesToThem) {
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(DampedSgd(net->parameters(), 0.1), *net);
  loss_of(net, shard_of(batch_of(0, at::kFloat))).backward();
  optimizer.step();
  EXPECT_EQ(optimizer.steps, 1);
  EXPECT_THAT(optimizer.fused_step_refusal(), HasSubstr("only"));
}

enum class Loop { Plain, Closure, Base };

template <class Opt, class Options>
Net train(const Options& options, FusedStep wish, Loop loop) {
  Net net = make_net(at::kFloat);
  Opt opt(net->parameters(), options);
  const auto run = [&](auto& optimizer) {
    for (int step = 0; step < kSteps; ++step) {
      const auto closure = [&] {
        optimizer.zero_grad();
        const at::Tensor loss = loss_of(net, shard_of(batch_of(step, at::kFloat)));
        loss.backward();
        return loss;
      };
      at::Tensor loss;
      if (loop == Loop::Closure) {
        loss = optimizer.step(closure);
        EXPECT_TRUE(loss.defined());
      } else {
        closure();
        optimizer.step();
      }
    }
    EXPECT_EQ(optimizer.fused_step_refusal().empty(), wish != FusedStep::Never);
  };
  const DistributedOptimizerOptions with{.fused_step = wish};
  if (loop == Loop::Base) {
    DistributedOptimizer optimizer(static_cast<optim::Optimizer&>(opt), *net, with);
    run(optimizer);
  } else {
    DistributedOptimizer optimizer(std::move(opt), *net, with);
    run(optimizer);
  }
  expect_equal_on_all_ranks(*net);
  return net;
}

TEST(FusedTraining, OfSgdIsEqualToTheBit) {
  const auto options = optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true);
  const Net expected = train<optim::SGD>(options, FusedStep::Never, Loop::Plain);
  for (const Loop loop : {Loop::Plain, Loop::Closure, Loop::Base}) {
    const Net net = train<optim::SGD>(options, FusedStep::WhereBitEqual, loop);
    expect_same_parameters(*net, *expected, 0);
  }
}

TEST(FusedTraining, OfAdamIsWithinRounding) {
  const auto adam = optim::AdamOptions(0.001);
  const auto adamw = optim::AdamWOptions(0.001).weight_decay(0.1);
  expect_same_parameters(*train<optim::Adam>(adam, FusedStep::WherePossible, Loop::Plain),
                         *train<optim::Adam>(adam, FusedStep::Never, Loop::Plain), 1e-6);
  expect_same_parameters(*train<optim::AdamW>(adamw, FusedStep::WherePossible, Loop::Base),
                         *train<optim::AdamW>(adamw, FusedStep::Never, Loop::Plain), 1e-6);
}

// The receivers lay the state out as the parameter; on the root it lies in another order.
TEST(FusedTraining, AllRanksFuseFromBroadcastState) {
  Net net = make_net(at::kFloat);
  const at::Tensor weight = net->conv->weight;
  optim::Adam adam(net->parameters(), optim::AdamOptions(0.001));
  loss_of(net, batch_of(0, at::kFloat)).backward();
  adam.step();
  adam.zero_grad();
  if (rank() == 0) {
    auto& state =
        static_cast<optim::AdamParamState&>(*adam.state().at(weight.unsafeGetTensorImpl()));
    state.exp_avg(state.exp_avg().contiguous(at::MemoryFormat::ChannelsLast));
  }
  broadcast_optimizer_state(adam);
  DistributedOptimizer optimizer(std::move(adam), *net, {.fused_step = FusedStep::WherePossible});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    loss_of(net, shard_of(batch_of(step, at::kFloat))).backward();
    optimizer.step();
    EXPECT_EQ(optimizer.fused_step_refusal(), "");
  }
  expect_equal_on_all_ranks(*net);
}

// Otherwise the replicas would differ in their last bits.
TEST(FusedTraining, OfSomeRanksAloneIsAMismatch) {
  if (size() == 1) GTEST_SKIP() << "one rank can't differ";
  Net net = make_net(at::kFloat);
  DistributedOptimizer optimizer(optim::Adam(net->parameters(), 0.001), *net);
  optimizer.set_fused_step(rank() == 1 ? FusedStep::WherePossible : FusedStep::Never);
  const auto train_step = [&] {
    optimizer.zero_grad();
    loss_of(net, shard_of(batch_of(0, at::kFloat))).backward();
    optimizer.step();
  };
  train_step();
  const std::string text = error_of(train_step);
  EXPECT_THAT(text, testing::StartsWith(to_string(ErrorCode::Mismatch)));
  EXPECT_THAT(text, HasSubstr("rank 1 took the last step fused and the other ranks did not"));
  optimizer.set_fused_step(FusedStep::WherePossible);
  broadcast_parameters(*net);
  broadcast_optimizer_state(optimizer);
  for (int step = 0; step < 3; ++step) train_step();
  expect_equal_on_all_ranks(*net);
}

TEST(FusedTraining, RefusalOutsideTheSetNamesThePlaceOfTheParameter) {
  const ProcessSet none = add_process_set({0});
  const at::Tensor a = at::ones({3}).set_requires_grad(true);
  const at::Tensor b = at::ones({3}, at::kBFloat16).set_requires_grad(true);
  DistributedOptimizer optimizer(optim::SGD({a, b}, 0.1), {{"a", a}, {"b", b}},
                                 {.process_set = none});
  b.mutable_grad() = at::ones_like(b.detach());
  optimizer.step();
  EXPECT_EQ(optimizer.fused_step_refusal(),
            (rank() == 0 ? "parameter \"b\": " : "parameter 1 of group 0: ") +
                std::string("it is neither float32 nor float64"));
}

TEST(FusedTraining, RefusalNamesTheParameterAndTheStepIsMadeAllTheSame) {
  Net net = make_net(at::kFloat);
  net->out->weight.set_data(net->out->weight.detach().to(at::kBFloat16));
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), 0.1), *net);
  EXPECT_EQ(optimizer.fused_step_refusal(), "");
  net->out->weight.mutable_grad() = at::ones_like(net->out->weight.detach());
  const at::Tensor before = net->out->weight.detach().clone();
  optimizer.step();
  EXPECT_EQ(optimizer.fused_step_refusal(),
            "parameter \"out.weight\": it is neither float32 nor float64");
  EXPECT_FALSE(before.equal(net->out->weight));
  optimizer.zero_grad();
  optimizer.set_fused_step(FusedStep::Never);
  optimizer.step();
  EXPECT_EQ(optimizer.fused_step_refusal(), "fused_step is Never");
}

}  // namespace
}  // namespace horon::fused_training_test
