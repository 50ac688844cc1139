// Collectives and gradients in CUDA graphs. LibTorch's device of threads can't capture an operation
// that makes a tensor, nor may one be given back in a capture; real_gpu_graph_test.cc captures
// whole steps where there is a GPU.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::gpu_capture_test {
namespace {

using namespace testing_support;
using testing::AllOf;
using testing::HasSubstr;

// A capture in the current stream of this rank's device.
class Capture {
 public:
  Capture() : stream_(torch_detail::current_stream(device()).native_handle()) {
    my_gpu().begin_capture(stream_);
  }
  std::shared_ptr<test::HostGraph> end() { return my_gpu().end_capture(stream_); }

 private:
  const ops::CudaStream stream_;
};

void launch(const std::shared_ptr<test::HostGraph>& graph) {
  my_gpu().launch(graph, torch_detail::current_stream(device()).native_handle());
}

double sum_of_ranks() { return size() * (size() + 1) / 2.0; }

at::Tensor on_gpu(at::IntArrayRef sizes) { return at::zeros(sizes, device()); }

// LibTorch's device of threads makes new tensors for most of LibTorch's own arithmetic.
void run_on_floats(const at::Tensor& tensor, const std::function<void(float&)>& change) {
  test::enqueue_in_current_stream(
      [tensor, change] {
        float* const values = tensor.mutable_data_ptr<float>();
        std::for_each(values, values + tensor.numel(), change);
      },
      device().index());
}

void expect_all(const at::Tensor& tensor, double value) {
  const at::Tensor on_host = tensor.cpu();
  EXPECT_TRUE(at::equal(on_host, at::full_like(on_host, value))) << on_host.flatten()[0];
}

TEST(GpuCapture, CollectivesAreMadeAtEachLaunch) {
  const at::Tensor x = on_gpu({300});
  const at::Tensor y = on_gpu({7, 5});
  const at::Tensor first = on_gpu({4});
  const at::Tensor gathered = on_gpu({2 * size()});
  (void)allreduce_(x);
  test::drain_current_stream(device().index());
  Capture capture;
  x.fill_(rank() + 1);
  const Handle early = allreduce_async_(x, {.name = "x", .op = ReduceOp::Sum});
  y.fill_(2 * (rank() + 1));
  grouped_allreduce_({y, first}, {.name = "group", .op = ReduceOp::Sum});
  first.fill_(rank() + 10);
  broadcast_(first, {.root = size() - 1});
  (void)early.wait();
  run_on_floats(x, [](float& value) { value += 1; });
  const auto graph = capture.end();
  expect_all(x, 0);
  for (int round = 0; round < 3; ++round) {
    x.fill_(-1);
    launch(graph);
    expect_all(x, sum_of_ranks() + 1);
    expect_all(y, 2 * sum_of_ranks());
    expect_all(first, size() + 9);
  }
  const at::Tensor eager = on_gpu({3}).fill_(rank() + 1);
  expect_all(allreduce_(eager, {.op = ReduceOp::Sum}), sum_of_ranks());
}

// After a launch, step() finds gradients that the graph has reduced already. It then asks the other
// ranks nothing.
TEST(GpuCapture, StepsAfterALaunchDoNotReduceAgain) {
  const at::Tensor w = on_gpu({40}).requires_grad_(true);
  DistributedOptimizer optimizer(torch::optim::SGD({w}, 0.5), {{"w", w}}, {.op = ReduceOp::Sum});
  const at::Tensor gradient = on_gpu({40});
  const at::Tensor scale = on_gpu({1}).fill_(1);
  const auto backward = [&] {
    gradient.fill_(rank() + 1);
    run_on_floats(gradient, [scale](float& value) { value *= *scale.const_data_ptr<float>(); });
    optimizer.zero_grad();
    w.view({40}).backward(gradient);  // makes no tensors in the device
  };
  double expected = 0;
  const auto eager_steps = [&] {
    for (int step = 0; step < 3; ++step) {
      backward();
      optimizer.step();
      expected -= 0.5 * sum_of_ranks();
      expect_all(w.detach(), expected);
    }
  };
  eager_steps();
  Capture capture;
  backward();
  const auto graph = capture.end();
  const int64_t rounds = optimizer.statistics().steps;
  for (int step = 1; step <= 4; ++step) {
    scale.fill_(step);
    launch(graph);
    optimizer.step();
    expected -= 0.5 * step * sum_of_ranks();
    expect_all(w.detach(), expected);
  }
  if (size() > 1) {
    EXPECT_EQ(optimizer.statistics().steps, rounds);
  }
  scale.fill_(1);
  eager_steps();
  const int64_t more_rounds = optimizer.statistics().steps;
  launch(graph);
  optimizer.step();
  expect_all(w.detach(), expected - 0.5 * sum_of_ranks());
  if (size() > 1) {
    EXPECT_EQ(optimizer.statistics().steps, more_rounds);
  }
}

TEST(GpuCapture, AReducerIsWholeAfterARefusal) {
  if (size() == 1) GTEST_SKIP() << "one rank needs no buckets";
  const at::Tensor w = on_gpu({40}).requires_grad_(true);
  DistributedOptimizer optimizer(torch::optim::SGD({w}, 0.5), {{"w", w}},
                                 {.name = "relaid", .op = ReduceOp::Sum});
  const at::Tensor narrow = on_gpu({40});
  const at::Tensor wide = on_gpu({50});
  w.view({40}).backward(narrow);
  optimizer.step();
  w.mutable_grad().reset();
  w.set_data(on_gpu({50}));
  test::drain_current_stream(device().index());
  Capture capture;
  const std::string error = test::error_of([&] { w.view({50}).backward(wide); });
  const std::string error_of_passes =
      test::error_of([&] { optimizer.set_backward_passes_per_step(2); });
  (void)capture.end();
  EXPECT_THAT(error_of_passes, HasSubstr("to warm up"));
  EXPECT_THAT(error, AllOf(HasSubstr("relaid"), HasSubstr("to warm up")));
  w.mutable_grad().reset();
  wide.fill_(rank() + 1);
  w.view({50}).backward(wide);
  optimizer.step();
  expect_all(w.detach(), -0.5 * sum_of_ranks());
}

// The graph would keep the scale of its capture, while the steps after it divide by another scale.
TEST(GpuCapture, AScaleThatMayChangeIsRefused) {
  const at::Tensor loss = on_gpu({});
  const amp::GradScaler scaler;
  test::drain_current_stream(device().index());
  Capture capture;
  const std::string error = test::error_of([&] { (void)scaler.scale(loss); });
  (void)capture.end();
  EXPECT_THAT(error, HasSubstr("can't be captured in a CUDA graph"));
}

TEST(GpuCapture, BucketsAreNotMadeInACapture) {
  if (size() == 1) GTEST_SKIP() << "one rank needs no buckets";
  const at::Tensor w = on_gpu({40}).requires_grad_(true);
  const NamedTensors parameters = {{"w", w}};
  test::drain_current_stream(device().index());
  Capture capture;
  const std::string error =
      test::error_of([&] { const GradientReducer reducer(parameters, {.name = "new"}); });
  (void)capture.end();
  EXPECT_THAT(error, AllOf(HasSubstr("new"), HasSubstr("to warm up")));
}

}  // namespace
}  // namespace horon::gpu_capture_test
