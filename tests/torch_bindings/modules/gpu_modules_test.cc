// Modules, metrics and logging on GPUs: LibTorch's device "cuda" made of threads. The oracle is one
// process that has all samples, on the CPU.
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <torch/nn.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/logging/logger.h"
#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/mean.h"
#include "horon/torch_bindings/modules/activation_checkpoint.h"
#include "horon/torch_bindings/modules/contrastive_loss.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"

namespace horon::gpu_modules_test {
namespace {

using testing_support::host_waits;
namespace nn = torch::nn;
namespace optim = torch::optim;

constexpr int64_t kRows = 4;  // of a rank

// The same on all ranks: the rows of all of them.
at::Tensor rows_of_all(double seed, int64_t columns) {
  return at::arange(kRows * size() * columns, at::kFloat)
      .add_(seed)
      .mul_(0.37)
      .cos()
      .view({-1, columns});
}
at::Tensor mine(const at::Tensor& all) {
  return all.slice(0, kRows * rank(), kRows * (rank() + 1));
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, double tolerance = 1e-5) {
  EXPECT_EQ(found.device(), device());
  EXPECT_TRUE(at::allclose(found.cpu(), expected, tolerance, tolerance)) << found.cpu() - expected;
}

// A third of the elements is left out, by random numbers of the device.
at::Tensor thinned(const at::Tensor& x) {
  return x * at::empty_like(x, at::TensorOptions().requires_grad(false)).bernoulli_(2.0 / 3);
}

// The second run draws what the first one has drawn, and then the program's numbers go on.
TEST(GpuModules, ActivationCheckpointsKeepTheRandomNumbersOfTheDevice) {
  at::Generator numbers = at::globalContext().defaultGenerator(device());
  const at::Tensor x = rows_of_all(1, 6).to(device()).requires_grad_(true);
  const auto twice = [](const at::Tensor& input) { return thinned(thinned(input.sin()) + input); };
  std::vector<at::Tensor> outputs, gradients, next;
  for (const bool recomputed : {false, true}) {
    numbers.set_current_seed(7);
    x.mutable_grad().reset();
    const at::Tensor y = recomputed ? checkpoint(twice, x) : twice(x);
    const at::Tensor between = thinned(at::ones_like(x));
    (y * between).square().sum().backward();
    outputs.push_back(y.detach().cpu());
    gradients.push_back(x.grad().cpu());
    next.push_back(thinned(at::ones_like(x)).cpu());
  }
  EXPECT_TRUE(outputs[0].equal(outputs[1]));
  EXPECT_TRUE(gradients[0].equal(gradients[1]));
  EXPECT_TRUE(next[0].equal(next[1]));
  EXPECT_FALSE(next[0].equal(at::ones_like(next[0]))) << "else nothing is left out";
}

TEST(GpuModules, SyncBatchNormEqualsOneProcessAndNothingWaitsOnTheHost) {
  SyncBatchNorm norm(3);
  nn::BatchNorm1d oracle(3);
  norm->to(device());
  int waits = 0;
  for (int step = 0; step < 4; ++step) {
    const at::Tensor all = rows_of_all(step, 3), factors = rows_of_all(step + 0.5, 3);
    const at::Tensor x = mine(all).to(device()).requires_grad_(true);
    const at::Tensor of_mine = mine(factors).to(device());
    const at::Tensor whole = all.clone().requires_grad_(true);
    const int before = host_waits();
    const at::Tensor y = norm->forward(x);
    (y * of_mine).sum().backward();
    if (step >= 2) waits += host_waits() - before;
    const at::Tensor expected = oracle->forward(whole);
    (expected * factors).sum().backward();
    expect_near(y.detach(), mine(expected.detach()));
    expect_near(x.grad(), mine(whole.grad()), 1e-4);
  }
  EXPECT_EQ(waits, 0);
  expect_near(norm->running_mean, oracle->running_mean);
  expect_near(norm->running_var, oracle->running_var);
  // Ranks without samples.
  const at::Tensor none = at::ones({rank() == 0 ? 4 : 0, 3}, at::TensorOptions().device(device()));
  norm->forward(none.requires_grad_(true)).sum().backward();
}

TEST(GpuModules, InfoNceEqualsOneProcess) {
  const at::Tensor queries = rows_of_all(1, 5), keys = rows_of_all(2, 5);
  const at::Tensor whole = queries.clone().requires_grad_(true);
  const auto unit = [](const at::Tensor& rows) { return rows / rows.norm(2, 1, true); };
  const at::Tensor logits = unit(whole).mm(unit(keys).t()) / 0.5;
  const at::Tensor expected =
      -(logits.log_softmax(1).diagonal().mean() + logits.t().log_softmax(1).diagonal().mean()) / 2;
  expected.backward();
  const at::Tensor x = mine(queries).to(device()).requires_grad_(true);
  const at::Tensor loss = info_nce(x, mine(keys).to(device()), {.temperature = 0.5});
  loss.backward();
  expect_near(allreduce(loss.detach()), expected.detach());
  expect_near(x.grad() / size(), mine(whole.grad()));
}

TEST(GpuModules, MetricsAndLogsWaitOnlyWhereTheyAreAskedFor) {
  const at::Tensor scores = rows_of_all(3, 4);
  const at::Tensor targets = at::arange(scores.size(0), at::kLong).remainder(4);
  const at::Tensor own_scores = mine(scores).to(device());
  const at::Tensor own_targets = mine(targets).to(device());
  const at::Tensor loss = own_scores.mean();
  metrics::Accuracy accuracy({.classes = 4});
  metrics::Mean mean;
  Logger logger;
  const int before = host_waits();
  for (int i = 0; i < 3; ++i) {
    accuracy.update(own_scores, own_targets);
    mean.update(loss, kRows);
    logger.log("loss", loss, {.weight = kRows});
  }
  EXPECT_EQ(host_waits(), before);
  EXPECT_EQ(accuracy.compute().item<double>(),
            scores.argmax(1).eq(targets).to(at::kDouble).mean().item<double>());
  EXPECT_NEAR(mean.compute().item<double>(), scores.mean().item<double>(), 1e-6);
  EXPECT_NEAR(logger.flush(1).values.front().second, scores.mean().item<double>(), 1e-6);
}

TEST(GpuModules, TheLatestOfNumbersAndTensorsIsLogged) {
  const auto options = at::TensorOptions().device(device());
  Logger logger;
  logger.log("number", at::full({}, 1, options), {.reduce = Reduce::First});
  logger.log("number", 2, {.reduce = Reduce::First});
  logger.log("tensor", 1, {.reduce = Reduce::First});
  logger.log("tensor", at::full({}, 2, options), {.reduce = Reduce::First});
  const auto values = logger.flush(1).values;
  ASSERT_EQ(values.size(), 2U);
  for (const auto& [name, value] : values) EXPECT_EQ(value, 2) << name;
}

struct NetImpl : nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    return last->forward(checkpoint(middle, norm->forward(first->forward(input))));
  }
  nn::Linear first = register_module("first", nn::Linear(6, 8));
  SyncBatchNorm norm = register_module("norm", SyncBatchNorm(8));
  nn::Sequential middle =
      register_module("middle", nn::Sequential(nn::Linear(8, 8), nn::Tanh(), nn::Linear(8, 8)));
  nn::Linear last = register_module("last", nn::Linear(8, 3));
};
TORCH_MODULE(Net);

// The same in one process.
at::Tensor plain_forward(Net& net, nn::BatchNorm1d& norm, const at::Tensor& input) {
  return net->last->forward(net->middle->forward(norm->forward(net->first->forward(input))));
}

TEST(GpuModules, AModelOfThemClippedByValueEqualsOneProcess) {
  Net net, alone;
  nn::BatchNorm1d norm(8);
  {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const at::Tensor values =
          at::arange(net->parameters()[i].numel(), at::kFloat) + static_cast<double>(i);
      net->parameters()[i].copy_(values.mul(0.7).sin().mul(0.4).view_as(net->parameters()[i]));
      alone->parameters()[i].copy_(net->parameters()[i]);
    }
  }
  norm->weight = alone->norm->weight;
  norm->bias = alone->norm->bias;
  optim::SGD plain(alone->parameters(), optim::SGDOptions(0.1).momentum(0.9));
  net->to(device());
  DistributedOptimizer optimizer(
      optim::SGD(net->parameters(), optim::SGDOptions(0.1).momentum(0.9)), *net,
      {.bucket_bytes = 300, .clip_grad_value = 0.02});
  int waits = 0;
  for (int step = 0; step < 6; ++step) {
    const at::Tensor all = rows_of_all(step, 6);
    const at::Tensor target = all.slice(1, 0, 3) * 0.5;
    const at::Tensor input = mine(all).to(device()), wanted = mine(target).to(device());
    plain.zero_grad();
    plain_forward(alone, norm, all).sub(target).square().mean().backward();
    nn::utils::clip_grad_value_(alone->parameters(), 0.02);
    plain.step();
    optimizer.zero_grad();
    const int before = host_waits();
    net->forward(input).sub(wanted).square().mean().backward();
    optimizer.step();
    if (step >= 2) waits += host_waits() - before;
    EXPECT_EQ(alone->last->weight.grad().abs().max().item<float>(), 0.02F) << "nothing is clipped";
  }
  EXPECT_EQ(waits, 0);
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    expect_near(net->parameters()[i].detach(), alone->parameters()[i].detach(), 1e-4);
  }
}

}  // namespace
}  // namespace horon::gpu_modules_test
