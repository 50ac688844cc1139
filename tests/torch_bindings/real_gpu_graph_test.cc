// Steps of training in CUDA graphs, on the GPU of each rank: the same result as one process on the
// CPU that takes all steps.
#include <algorithm>
#include <optional>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/session.h"

namespace horon {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;

constexpr int kWarmUps = 3;  // of all steps, with the batch of step 0

// The batch of step 0 in the memory that graphs read.
Batch static_batch() {
  const Batch mine = shard_of(batch_of(0, at::kDouble));
  return {mine.images.to(device()), mine.labels.to(device())};
}

void load(const Batch& into, int step) {
  const Batch mine = shard_of(batch_of(step, at::kDouble));
  into.images.copy_(mine.images);
  into.labels.copy_(mine.labels);
}

template <class Step>
void warm_up(const Step& step) {
  for (int i = 0; i < kWarmUps; ++i) step();
}

template <class Opt>
void train_alone(Net& net, Opt& optimizer) {
  for (int step = 1 - kWarmUps; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net, batch_of(std::max(step, 0), at::kDouble)).backward();
    static_cast<optim::Optimizer&>(optimizer).step();
  }
}

class RealGpuGraph : public testing::Test {
 protected:
  void SetUp() override {
    if (!device().is_cuda()) GTEST_SKIP() << "no GPU: horon::device() is the CPU";
    // The legacy stream can't be captured.
    stream_.emplace(c10::cuda::getStreamFromPool(false, device().index()));
  }
  std::optional<c10::cuda::CUDAStreamGuard> stream_;
};

TEST_F(RealGpuGraph, AWholeStepIsLaunched) {
  const optim::SGDOptions options = optim::SGDOptions(0.05).momentum(0.9);
  Net alone = make_net(at::kDouble);
  optim::SGD plain(alone->parameters(), options);
  train_alone(alone, plain);

  Net net = make_net(at::kDouble);
  net->to(device());
  DistributedOptimizer optimizer(optim::SGD(net->parameters(), options), net->named_parameters(),
                                 {.name = "whole step",
                                  .op = ReduceOp::Average,
                                  .bucket_bytes = 2000,
                                  .first_bucket_bytes = 100});
  const Batch batch = static_batch();
  const auto step = [&] {
    optimizer.zero_grad();
    loss_of(net, batch).backward();
    optimizer.step();
  };
  warm_up(step);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  step();
  graph.capture_end();
  for (int number = 1; number < kSteps; ++number) {
    load(batch, number);
    graph.replay();
    const at::Tensor eager = at::ones({5}, device());
    EXPECT_EQ(allreduce(eager, {.name = "eager", .op = ReduceOp::Sum}).sum().item<float>(),
              static_cast<float>(5 * size()));
  }
  expect_equal_on_all_ranks(*net);
  net->to(at::kCPU);
  expect_same_parameters(*net, *alone, 1e-8);
}

TEST_F(RealGpuGraph, StepsFollowLaunchesOfBackward) {
  const optim::AdamWOptions options(0.01);
  Net alone = make_net(at::kDouble);
  optim::AdamW plain(alone->parameters(), options);
  train_alone(alone, plain);

  Net net = make_net(at::kDouble);
  net->to(device());
  DistributedOptimizer optimizer(optim::AdamW(net->parameters(), options), net->named_parameters(),
                                 {.name = "backward", .op = ReduceOp::Average});
  const Batch batch = static_batch();
  const auto gradients = [&] {
    optimizer.zero_grad();
    loss_of(net, batch).backward();
  };
  warm_up([&] {
    gradients();
    optimizer.step();
  });
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  gradients();
  graph.capture_end();
  for (int number = 1; number < kSteps; ++number) {
    load(batch, number);
    graph.replay();
    optimizer.step();
  }
  expect_equal_on_all_ranks(*net);
  net->to(at::kCPU);
  expect_same_parameters(*net, *alone, 1e-8);
}

}  // namespace
}  // namespace horon
