// clip_grad_value: N ranks on shards of a batch against plain LibTorch on the whole batch.
#include <limits>

#include <gmock/gmock.h>
#include <torch/nn/utils/clip_grad.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/tests/torch_bindings/gradients/training_support.h"

namespace horon::clip_value_test {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 1024;
constexpr double kLargest = 0.01;

TEST(ClipValue, OfNRanksAgainstOneProcess) {
  for (const FusedStep fused : {FusedStep::WherePossible, FusedStep::Never}) {
    Net alone = make_net(at::kDouble), net = make_net(at::kDouble);
    optim::AdamW plain(alone->parameters(), optim::AdamWOptions(0.01));
    DistributedOptimizer optimizer(optim::AdamW(net->parameters(), optim::AdamWOptions(0.01)), *net,
                                   {.bucket_bytes = 2000,
                                    .fused_step = fused,
                                    .grad_scale = kScale,
                                    .clip_grad_norm = kInfinity,
                                    .clip_grad_value = kLargest});
    for (int step = 0; step < kSteps; ++step) {
      plain.zero_grad();
      loss_of(alone, batch_of(step, at::kDouble)).backward();
      const double norm = ::torch::nn::utils::clip_grad_norm_(alone->parameters(), kInfinity);
      ::torch::nn::utils::clip_grad_value_(alone->parameters(), kLargest);
      plain.step();
      optimizer.zero_grad();
      (loss_of(net, shard_of(batch_of(step, at::kDouble))) * kScale).backward();
      optimizer.step();
      EXPECT_NEAR(optimizer.grad_norm().value_or(-1), norm, 1e-6 * norm) << "before clipping";
      const double largest = net->out->weight.grad().abs().max().item<double>();
      EXPECT_EQ(largest, kLargest) << "else the test says little";
    }
    EXPECT_EQ(optimizer.fused_step_refusal().empty(), fused == FusedStep::WherePossible);
    expect_equal_on_all_ranks(*net);
    expect_same_parameters(*net, *alone, 1e-7);
  }
}

// The elements are clipped, and not the values of one row before they are added up.
TEST(ClipValue, OfGradientsThatStaySparse) {
  const at::Tensor w = leaf({4, 2});
  DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}},
                                 {.sparse_as_dense = false, .clip_grad_value = 3});
  const at::Tensor twice = at::zeros({2}, at::kLong);
  (::torch::embedding(w, twice, -1, false, true).sum() * 2).backward();
  optimizer.step();
  EXPECT_TRUE(w[0].equal(at::full({2}, 1.0 - 3)));
  EXPECT_TRUE(w[1].equal(at::ones({2})));
}

// A step in which no rank has a new gradient leaves the older one as it is.
TEST(ClipValue, ASparseGradientThatIsKeptCountsOnce) {
  const at::Tensor table = leaf({4, 2}), w = leaf({2});
  DistributedOptimizer optimizer(
      optim::SGD({table, w}, 0.1), {},
      {.op = ReduceOp::Sum, .sparse_as_dense = false, .clip_grad_value = 100});
  at::embedding(table, at::tensor({1, 1}, at::kLong), -1, false, true).sum().backward();
  for (int step = 0; step < 3; ++step) {
    table.grad()._coalesced_(false);  // as after what the program does to it
    optimizer.step();
    EXPECT_EQ(table.grad().to_dense().sum().item<float>(), 4 * size());
    w.mutable_grad().reset();
    weighted(w, 1).backward();
  }
}

// All ranks refuse it, also those that do not get its gradient.
TEST(ClipValue, ComplexParametersAreRefused) {
  for (const bool shards : {false, true}) {
    std::vector<at::Tensor> parameters = {at::ones({3}, at::kComplexFloat).requires_grad_(),
                                          leaf({3}), leaf({3})};
    DistributedOptimizer optimizer(
        optim::SGD(parameters, 1.0), {},
        {.clip_grad_value = 1, .shard_optimizer_state = shards, .shard_gradients = shards});
    (at::real(parameters[0]).sum() + weighted(parameters[1], 1)).backward();
    EXPECT_THAT(error_of([&] { optimizer.step(); }),
                HasSubstr(" is complex, and complex numbers have no order"));
  }
}

TEST(ClipValue, WrongOptions) {
  const at::Tensor w = leaf({4});
  const auto error_with = [&](const DistributedOptimizerOptions& options) {
    return error_of([&] { DistributedOptimizer(optim::SGD({w}, 1.0), {{"w", w}}, options); });
  };
  EXPECT_THAT(error_with({.clip_grad_value = 0}), HasSubstr("clip_grad_value is 0"));
  EXPECT_THAT(error_with({.clip_grad_norm = 1, .clip_grad_value = 1}), HasSubstr("choose one"));
  EXPECT_THAT(error_of([&] {
                GradientReducer({{"w", w}}, {.clip_grad_value = 1});
              }),
              HasSubstr("a GradientReducer makes no steps"));
  if (size() == 1) return;
  DistributedOptimizer optimizer(optim::SGD({w}, 1.0), {{"w", w}},
                                 {.clip_grad_value = rank() == 0 ? 2 : 1});
  EXPECT_THAT(error_of([&] {
                weighted(w, 1).backward();
                optimizer.step();
              }),
              HasSubstr("clipped to values of 2"));
}

}  // namespace
}  // namespace horon::clip_value_test
