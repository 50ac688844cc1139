// Gradients on GPUs that are reduced to the owners of their parameters alone: how often the host
// waits, loss scaling, and CUDA graphs. gpu_training_test.cc trains with them on every kind of
// ranks.
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/tests/torch_bindings/host_gpu/small_training.h"
#include "horon/torch_bindings/amp/grad_scaler.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/state/replicas.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::gpu_shard_gradients_test {
namespace {

using namespace testing_support;
namespace nn = torch::nn;
namespace optim = torch::optim;

DistributedOptimizerOptions to_owners(bool shards) {
  DistributedOptimizerOptions options;
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 200;
  options.shard_optimizer_state = options.shard_gradients = shards;
  return options;
}

struct Training {
  explicit Training(const DistributedOptimizerOptions& options)
      : model(nn::Linear(6, 40), nn::Tanh(), nn::Linear(40, 40), nn::Tanh(), nn::Linear(40, 3)),
        optimizer(optim::SGD(on_gpu()->parameters(), optim::SGDOptions(0.1).momentum(0.9)),
                  model->named_parameters(), options) {}

  nn::Sequential& on_gpu() {
    fill_parameters(model);
    model->to(device());
    return model;
  }
  at::Tensor loss(int step) { return loss_of(model, batch(step, rank()).to(device())); }

  nn::Sequential model;
  DistributedOptimizer<optim::SGD> optimizer;
};

void expect_equal(Training& found, Training& expected, double tolerance = 1e-6) {
  const std::vector<at::Tensor> wanted = expected.model->parameters();
  const std::vector<at::Tensor> got = found.model->parameters();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(at::allclose(got[i].cpu(), wanted[i].cpu(), 10 * tolerance, tolerance)) << i;
  }
  check_replicas_equal(*found.model);
}

TEST(GpuShardGradients, NothingWaitsOnTheHost) {
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < 6; ++i) inputs.push_back(batch(i, rank()).to(device()));
  const auto train = [&](Training& training) {
    int before = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (i == 2) before = host_waits();
      training.optimizer.zero_grad();
      loss_of(training.model, inputs[i]).backward();
      training.optimizer.step();
    }
    EXPECT_EQ(host_waits(), before);
  };
  for (const Compression compression : {Compression::None, Compression::BFloat16}) {
    const auto options = [&](bool shards) {
      DistributedOptimizerOptions all = to_owners(shards);
      all.clip_grad_norm = 0.05;
      all.compression = compression;
      return all;
    };
    Training found(options(true));
    train(found);
    Training expected(options(false));
    train(expected);
    expect_equal(found, expected);
    EXPECT_NEAR(*found.optimizer.grad_norm(), *expected.optimizer.grad_norm(), 1e-6);
  }
}

// One gradient of one rank is infinite in step 3.
TEST(GpuShardGradients, AStepThatAllLeaveOut) {
  for (const bool unscales : {false, true}) {
    const auto train = [&](Training& training) {
      amp::GradScaler scaler({.init_scale = 64, .growth_interval = 3});
      for (int i = 0; i < 5; ++i) {
        training.optimizer.zero_grad();
        at::Tensor loss = training.loss(i);
        const double bad = rank() == 0 && i == 3 ? std::numeric_limits<double>::infinity() : 1;
        loss = loss.add(training.model->parameters().back().sum().mul(bad));
        scaler.scale(loss).backward();
        if (unscales) scaler.unscale_(training.optimizer);
        EXPECT_EQ(scaler.step(training.optimizer), i != 3);
        scaler.update();
      }
      EXPECT_EQ(scaler.get_scale(), 64);  // 128 after three steps
    };
    Training found(to_owners(true));
    train(found);
    Training expected(to_owners(false));
    train(expected);
    expect_equal(found, expected);
  }
}

// The graph reduces to the owners too. The step after its launch sends the parameters that they
// move.
void expect_steps_behind_graphs(bool to_owners_alone) {
  std::vector<at::Tensor> weights;
  NamedTensors named;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(at::zeros({40 + i}, device()).requires_grad_(true));
    named.emplace_back("w" + std::to_string(i), weights.back());
  }
  DistributedOptimizerOptions options = to_owners(true);
  options.shard_gradients = to_owners_alone;
  options.op = ReduceOp::Sum;
  DistributedOptimizer optimizer(optim::SGD(weights, 0.5), named, options);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& weight : weights) gradients.push_back(at::zeros_like(weight));
  const auto backward = [&] {
    optimizer.zero_grad();
    torch::autograd::variable_list views;  // which make no tensors in the device
    for (size_t i = 0; i < weights.size(); ++i) {
      gradients[i].fill_(static_cast<double>(i) + rank() + 1);
      views.push_back(weights[i].view({40 + static_cast<int64_t>(i)}));
    }
    torch::autograd::backward(views, {gradients.begin(), gradients.end()});
  };
  std::vector<double> expected(weights.size());
  const auto expect_moved = [&] {
    for (size_t i = 0; i < weights.size(); ++i) {
      expected[i] -= 0.5 * (size() * (size() + 1) / 2.0 + size() * static_cast<double>(i));
      const at::Tensor values = weights[i].detach().cpu();
      EXPECT_TRUE(values.eq(expected[i]).all().item<bool>()) << i << ": " << values[0];
    }
  };
  for (int step = 0; step < 3; ++step) {
    backward();
    optimizer.step();
    expect_moved();
  }
  test::drain_current_stream(device().index());
  const auto stream = torch_detail::current_stream(device()).native_handle();
  my_gpu().begin_capture(stream);
  backward();
  const auto graph = my_gpu().end_capture(stream);
  for (int step = 0; step < 3; ++step) {
    my_gpu().launch(graph, stream);
    optimizer.step();
    expect_moved();
  }
}

TEST(GpuShardGradients, GraphsReduceWholeGradients) { expect_steps_behind_graphs(false); }
TEST(GpuShardGradients, GraphsReduceToTheOwners) { expect_steps_behind_graphs(true); }

}  // namespace
}  // namespace horon::gpu_shard_gradients_test
