// Training on GPUs: LibTorch's device "cuda" made of threads, and Horon's own classes for CUDA and
// NCCL on it. The oracle is one process that trains on the whole batch, on the CPU.
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/tests/torch_bindings/host_gpu/small_training.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::gpu_training_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::batch;
using testing_support::host_waits;
using testing_support::loss_of;
namespace nn = torch::nn;
namespace optim = torch::optim;

nn::Sequential make_model() {
  nn::Sequential model(nn::Linear(6, 40), nn::ReLU(), nn::Linear(40, 40), nn::ReLU(),
                       nn::Linear(40, 3));
  testing_support::fill_parameters(model);
  return model;
}

std::vector<at::Tensor> train_alone(int steps,
                                    const std::function<void(nn::Sequential&, int)>& step) {
  nn::Sequential model = make_model();
  for (int i = 0; i < steps; ++i) step(model, i);
  return model->parameters();
}

template <class Optimizer, class Options>
std::vector<at::Tensor> trained_alone(const Options& options, int steps, double clip = 0,
                                      int without = -1) {
  std::unique_ptr<Optimizer> optimizer;
  return train_alone(steps, [&](nn::Sequential& model, int i) {
    if (i == without) return;
    if (!optimizer) optimizer = std::make_unique<Optimizer>(model->parameters(), options);
    optimizer->zero_grad();
    loss_of(model, batch(i)).backward();
    if (clip > 0) nn::utils::clip_grad_norm_(model->parameters(), clip);
    optimizer->step();
  });
}

void expect_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                 double tolerance = 1e-5) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].device(), device());
    EXPECT_TRUE(at::allclose(found[i].cpu(), expected[i], tolerance, tolerance))
        << "parameter " << i << "\n"
        << found[i].cpu() - expected[i];
  }
}

const DistributedOptimizerOptions kSmallBuckets = [] {
  DistributedOptimizerOptions options;
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 200;
  return options;
}();

optim::SGDOptions momentum() { return optim::SGDOptions(0.1).momentum(0.9); }

// A model on the GPU of this rank, and its optimizer.
struct Training {
  explicit Training(DistributedOptimizerOptions options = kSmallBuckets)
      : optimizer(optim::SGD(on_gpu(model)->parameters(), momentum()), model->named_parameters(),
                  options) {}

  static nn::Sequential& on_gpu(nn::Sequential& model) {
    model->to(device());
    return model;
  }
  void step(int number) {
    const at::Tensor input = batch(number, rank()).to(device());
    optimizer.zero_grad();
    loss_of(model, input).backward();
    optimizer.step();
  }

  nn::Sequential model = make_model();
  DistributedOptimizer<optim::SGD> optimizer;
};

TEST(GpuTraining, EqualsOneProcess) {
  Training training;
  for (int i = 0; i < 8; ++i) training.step(i);
  expect_near(training.model->parameters(), trained_alone<optim::SGD>(momentum(), 8));
  check_replicas_equal(*training.model);
}

TEST(GpuTraining, AdamAndGradientsThatStay) {
  nn::Sequential model = make_model();
  model->to(device());
  DistributedOptimizer optimizer(optim::Adam(model->parameters(), optim::AdamOptions(0.01)),
                                 model->named_parameters(), kSmallBuckets);
  for (int i = 0; i < 8; ++i) {
    if (i % 2 == 0) {
      optimizer.zero_grad();
    } else {
      optimizer.zero_grad(/*set_to_none=*/false);
    }
    loss_of(model, batch(i, rank()).to(device())).backward();
    optimizer.step();
  }
  expect_near(model->parameters(), trained_alone<optim::Adam>(optim::AdamOptions(0.01), 8), 1e-4);
}

TEST(GpuTraining, FusedAdam) {
  DistributedOptimizerOptions options = kSmallBuckets;
  options.fused_step = FusedStep::WherePossible;
  options.grad_scale = 4;
  nn::Sequential model = make_model();
  model->to(device());
  DistributedOptimizer optimizer(optim::Adam(model->parameters(), optim::AdamOptions(0.01)),
                                 model->named_parameters(), options);
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 6; ++i) inputs.push_back(batch(i, rank()).to(device()));
  int before = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i == 2) before = host_waits();
    optimizer.zero_grad();
    loss_of(model, inputs[i]).mul(4).backward();
    optimizer.step();
    EXPECT_EQ(optimizer.fused_step_refusal(), "");
  }
  EXPECT_EQ(host_waits(), before);
  expect_near(model->parameters(), trained_alone<optim::Adam>(optim::AdamOptions(0.01), 6), 1e-4);

  Training plain(options);
  plain.step(0);
  EXPECT_EQ(plain.optimizer.fused_step_refusal().empty(), device().is_cpu());
}

TEST(GpuTraining, OptimizerStateThatIsSharedOut) {
  for (const bool gradients : {false, true}) {
    DistributedOptimizerOptions options = kSmallBuckets;
    options.shard_optimizer_state = true;
    options.shard_gradients = gradients;
    Training training(options);
    for (int i = 0; i < 8; ++i) training.step(i);
    expect_near(training.model->parameters(), trained_alone<optim::SGD>(momentum(), 8));
    check_replicas_equal(*training.model);
    training.optimizer.consolidate_state();
    EXPECT_EQ(training.optimizer.state().size() == 6, rank() == 0 || size() == 1);
  }
}

TEST(GpuTraining, CompressionPassesAndSums) {
  for (const Compression compression : {Compression::None, Compression::BFloat16}) {
    DistributedOptimizerOptions options = kSmallBuckets;
    options.compression = compression;
    options.backward_passes_per_step = 2;
    options.average_aggregated_gradients = true;
    Training training(options);
    for (int i = 0; i < 4; ++i) {
      training.optimizer.zero_grad();
      const at::Tensor input = batch(i, rank()).to(device());
      for (const int64_t half : {0, 1}) {
        loss_of(training.model, input.slice(0, 2 * half, 2 * half + 2)).backward();
      }
      training.optimizer.step();
    }
    expect_near(training.model->parameters(), trained_alone<optim::SGD>(momentum(), 4),
                compression == Compression::None ? 1e-5 : 2e-2);
    check_replicas_equal(*training.model);
  }
}

TEST(GpuTraining, NothingWaitsOnTheHost) {
  DistributedOptimizerOptions options = kSmallBuckets;
  options.clip_grad_norm = 0.05;
  Training training(options);
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 8; ++i) inputs.push_back(batch(i, rank()).to(device()));
  const auto step = [&](int i) {
    training.optimizer.zero_grad();
    loss_of(training.model, inputs[static_cast<size_t>(i)]).backward();
    training.optimizer.step();
  };
  step(0);
  step(1);
  const int before = host_waits();
  for (int i = 2; i < 8; ++i) step(i);
  EXPECT_EQ(host_waits(), before);
  expect_near(training.model->parameters(), trained_alone<optim::SGD>(momentum(), 8, 0.05));
  EXPECT_GT(training.optimizer.grad_norm().value_or(0), 0.0);
}

TEST(GpuTraining, BackwardOnSideStreams) {
  const c10::Stream side = test::new_stream(device().index());
  Training training;
  Training other;  // two models in turn
  for (int i = 0; i < 6; ++i) {
    const at::Tensor input = batch(i, rank()).to(device());
    test::drain_current_stream(device().index());
    {
      const c10::StreamGuard guard(side);
      training.optimizer.zero_grad();
      loss_of(training.model, input).backward();
      training.optimizer.step();
    }
    other.step(i);
  }
  {
    const c10::StreamGuard guard(side);
    expect_near(training.model->parameters(), trained_alone<optim::SGD>(momentum(), 6));
  }
  expect_near(other.model->parameters(), trained_alone<optim::SGD>(momentum(), 6));
}

// Sleeps in the stream after autograd's work on a gradient and before the copy into its bucket.
struct SleepsInItsStream final : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& /*parameter*/) override {
    test::enqueue_in_current_stream(
        [] { std::this_thread::sleep_for(std::chrono::milliseconds(40)); }, device().index());
  }
};

// The first gradient is still being written when the second one submits their bucket.
TEST(GpuTraining, ABucketWrittenFromTwoStreamsIsWeighedBehindBoth) {
  const c10::Stream side = test::new_stream(device().index());
  const auto options = at::TensorOptions().device(device());
  const at::Tensor slow = at::ones({30}, options).requires_grad_(true);
  const at::Tensor fast = at::ones({20}, options).requires_grad_(true);
  test::drain_current_stream(device().index());
  at::Tensor holds_stream;  // autograd adds to a leaf in the stream of its first use
  {
    const c10::StreamGuard guard(side);
    holds_stream = slow.mul(1);
    test::drain_current_stream(device().index());
  }
  torch::autograd::impl::set_post_acc_grad_hooks(slow, std::make_unique<SleepsInItsStream>());
  GradientReducer reducer({{"slow", slow}, {"fast", fast}});
  double expected = 0;
  double weights = 0;
  for (int r = 0; r < size(); ++r) {
    expected += (r + 2) * (r + 3);
    weights += r + 2;
  }
  for (int step = 0; step < 2; ++step) {
    slow.mutable_grad().reset();
    fast.mutable_grad().reset();
    reducer.set_weight(rank() + 2);
    const at::Tensor later = fast.mul(rank() + 3).sum();
    (slow.mul(rank() + 3).sum() + later).backward();
    reducer.synchronize();
    expect_near({slow.grad(), fast.grad()},
                {at::full({30}, expected / weights), at::full({20}, expected / weights)});
  }
}

// Whether six steps of training with a planted `fault` make the model that they should.
bool trains_rightly_with(test::Fault fault, int us) {
  DistributedOptimizerOptions options = kSmallBuckets;
  options.check_replicas = false;
  Training training(options);
  test::plant(fault, us);
  for (int i = 0; i < 6; ++i) training.step(i);
  test::plant(test::Fault::None);
  test::drain_current_stream(device().index());
  const std::vector<at::Tensor> expected = trained_alone<optim::SGD>(momentum(), 6);
  bool right = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    right = right && at::allclose(training.model->parameters()[i].cpu(), expected[i], 1e-5, 1e-5);
  }
  barrier();
  return right;
}

// On a busy machine the streams may happen to run in order all the same, so it is tried again with
// the late ones later; all ranks try it equally often.
TEST(GpuTraining, AMissingOrderIsSeen) {
  if (size() == 1 || !testing_support::device_reduces()) GTEST_SKIP() << "no order on the device";
  for (const test::Fault fault : {test::Fault::LosesWaits, test::Fault::LosesRecords}) {
    bool seen = false;  // on all ranks
    for (int us = 1000; !seen && us <= 1'024'000; us *= 4) {
      const double wrong_here = trains_rightly_with(fault, us) ? 0 : 1;
      seen = allreduce(at::scalar_tensor(wrong_here), {.op = ReduceOp::Min}).item<double>() > 0;
    }
    EXPECT_TRUE(seen);
  }
}

// One rank's gradients are infinite in step 3, so no rank makes that step.
TEST(GpuTraining, AScalerWaitsOnceInAStepAndLeavesOutWhatIsNotFinite) {
  for (const bool unscaled_first : {false, true}) {
    Training training;
    amp::GradScaler scaler({.init_scale = 64, .growth_interval = 3});
    for (int i = 0; i < 7; ++i) {
      const double factor = i == 3 && rank() == 0 ? std::numeric_limits<double>::infinity() : 1;
      training.optimizer.zero_grad();
      const at::Tensor loss = loss_of(training.model, batch(i, rank()).to(device())).mul(factor);
      const int before = host_waits();
      scaler.scale(loss).backward();
      if (unscaled_first) scaler.unscale_(training.optimizer);
      EXPECT_EQ(scaler.step(training.optimizer), i != 3);
      scaler.update();
      EXPECT_TRUE(i < 2 || i == 3 || host_waits() == before + int{device().is_cuda()});
      EXPECT_EQ(training.optimizer.step_skipped(), i == 3);
    }
    EXPECT_EQ(scaler.get_scale(), 128);  // 64, 128 after three steps, 64, 128
    expect_near(training.model->parameters(),
                trained_alone<optim::SGD>(momentum(), 7, /*clip=*/0, /*without=*/3));
  }
}

// Norms of layers, and what follows from them, stay on the device.
template <class Optimizer, class Options>
void expect_layer_wise_steps(const Options& options) {
  nn::Sequential model = make_model();
  DistributedOptimizer optimizer(Optimizer(Training::on_gpu(model)->parameters(), options),
                                 model->named_parameters(), kSmallBuckets);
  for (int i = 0; i < 6; ++i) {
    const at::Tensor input = batch(i, rank()).to(device());
    const int before = host_waits();
    optimizer.zero_grad();
    loss_of(model, input).backward();
    optimizer.step();
    EXPECT_TRUE(i < 2 || host_waits() == before) << host_waits() - before;
  }
  expect_near(model->parameters(), trained_alone<Optimizer>(options, 6), 1e-4);
}

TEST(GpuTraining, LarsAndLamb) {
  expect_layer_wise_steps<Lars>(LarsOptions(1).weight_decay(0.01).trust_coefficient(0.02));
  expect_layer_wise_steps<Lamb>(LambOptions(0.01).weight_decay(0.01));
}

TEST(GpuTraining, WaitInStepAndOtherReductions) {
  DistributedOptimizerOptions options = kSmallBuckets;
  options.wait_in = WaitIn::Step;
  Training training(options);
  for (int i = 0; i < 4; ++i) training.step(i);
  expect_near(training.model->parameters(), trained_alone<optim::SGD>(momentum(), 4));

  const at::Tensor weight =
      at::ones({50}, at::TensorOptions().device(device())).requires_grad_(true);
  GradientReducer reducer({{"weight", weight}}, {.op = ReduceOp::Max});
  weight.mul(static_cast<double>(rank() + 1)).sum().backward();
  reducer.synchronize();
  EXPECT_TRUE(at::equal(weight.grad().cpu(), at::full({50}, static_cast<float>(size()))));
}

TEST(GpuTraining, ParametersOfOneReducerAreOnOneDevice) {
  const at::Tensor here = at::ones({3}, at::TensorOptions().device(device())).requires_grad_(true);
  const at::Tensor host = at::ones({3}).requires_grad_(true);
  EXPECT_THAT(
      error_of([&] {
        GradientReducer reducer({{"a", here}, {"b", host}});
      }),
      AllOf(HasSubstr("\"b\" is on cpu"), HasSubstr("\"a\" is on cuda"), HasSubstr("one device")));
}

TEST(GpuTraining, AModelThatMovesToTheGpuIsFollowed) {
  nn::Sequential model = make_model();
  DistributedOptimizer optimizer(optim::SGD(model->parameters(), momentum()),
                                 model->named_parameters(), kSmallBuckets);
  for (int i = 0; i < 4; ++i) {
    if (i == 1) model->to(device());
    // Drops the state on the CPU, which a step on the GPU can't use: the first step there begins
    // without state.
    if (i == 1) optimizer.state().clear();
    optimizer.zero_grad();
    loss_of(model, i == 0 ? batch(0, rank()) : batch(i, rank()).to(device())).backward();
    optimizer.step();
  }
  check_replicas_equal(*model);
  EXPECT_TRUE(model->parameters().front().is_cuda());
}

}  // namespace
}  // namespace horon::gpu_training_test
