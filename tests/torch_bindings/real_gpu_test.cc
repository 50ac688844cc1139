// Training and collectives on the GPU of each rank, where there is one; the same on the CPU on
// every machine, so that what the test expects is right.
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"
#include "horon/torch_bindings/collectives/point_to_point.h"
#include "horon/torch_bindings/session.h"

namespace horon {
namespace {

namespace optim = ::torch::optim;
using namespace testing_support;

class RealGpu : public testing::Test {
 public:
  // The CPU, then the GPU.
  static std::vector<at::Device> devices() {
    std::vector<at::Device> all{at::kCPU};
    if (device().is_cuda()) all.push_back(device());
    return all;
  }

 protected:
  // What the CPU has shown stands, but this test is about GPUs.
  void TearDown() override {
    if (!device().is_cuda()) GTEST_SKIP() << "no GPU: horon::device() is the CPU";
  }
};

std::string label(const std::string& name, at::Device device) {
  return name + (device.is_cuda() ? ".cuda" : ".cpu");
}

// Each rank trains on its shard, on the device. `clip`: the norm to which gradients are clipped, or
// 0. `shares_out`: the optimizer's state and the gradients are shared out over the ranks.
template <class Opt, class Options>
Net train_on(at::Device device, const Options& options, double clip, bool shares_out) {
  Net net = make_net(at::kDouble);
  net->to(device);
  // No rank has all gradients.
  const auto norm_of_step = shares_out && clip > 0 ? std::optional(clip) : std::nullopt;
  DistributedOptimizer optimizer(Opt(net->parameters(), options), net->named_parameters(),
                                 {.name = label("train", device),
                                  .op = ReduceOp::Average,
                                  .bucket_bytes = 2000,
                                  .first_bucket_bytes = 100,
                                  .clip_grad_norm = norm_of_step,
                                  .shard_optimizer_state = shares_out,
                                  .shard_gradients = shares_out});
  for (int step = 0; step < kSteps; ++step) {
    const Batch mine = shard_of(batch_of(step, at::kDouble));
    optimizer.zero_grad();
    loss_of(net, {mine.images.to(device), mine.labels.to(device)}).backward();
    if (clip > 0 && !shares_out) ::torch::nn::utils::clip_grad_norm_(net->parameters(), clip);
    optimizer.step();
  }
  expect_equal_on_all_ranks(*net);
  net->to(at::kCPU);
  return net;
}

template <class Opt, class Options>
void compare(const Options& options, double clip = 0, bool shares_out = false) {
  Net alone = make_net(at::kDouble);
  Opt plain(alone->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    loss_of(alone, batch_of(step, at::kDouble)).backward();
    if (clip > 0) ::torch::nn::utils::clip_grad_norm_(alone->parameters(), clip);
    static_cast<optim::Optimizer&>(plain).step();
  }
  for (const at::Device device : RealGpu::devices()) {
    SCOPED_TRACE(device.str());
    const Net net = train_on<Opt>(device, options, clip, shares_out);
    expect_same_parameters(*net, *alone, 1e-8);
  }
}

TEST_F(RealGpu, TrainsAsOneProcessOnTheCpuWithSgd) {
  compare<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9));
}

TEST_F(RealGpu, TrainsAsOneProcessOnTheCpuWithAdamAndClipping) {
  compare<optim::AdamW>(optim::AdamWOptions(0.01), 0.5);
}

TEST_F(RealGpu, TrainsAsOneProcessWithStateAndGradientsSharedOut) {
  compare<optim::SGD>(optim::SGDOptions(0.05).momentum(0.9), /*clip=*/0, /*shares_out=*/true);
  compare<optim::Adam>(optim::AdamOptions(0.01), /*clip=*/0.3, /*shares_out=*/true);
}

torch::nn::Embedding make_table() {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(40, 3).sparse(true));
  const at::NoGradGuard no_grad;
  table->weight.copy_(at::arange(120).view({40, 3}).mul(0.01));
  return table;
}

// The rows of all ranks, which have as many each; some rows come several times.
at::Tensor rows_of(int step) { return at::arange(6 * size(), at::kLong).mul(7).add(step) % 40; }

TEST_F(RealGpu, SparseGradientsTrainAsInOneProcess) {
  torch::nn::Embedding alone = make_table();
  optim::SGD plain(alone->parameters(), 0.5);
  const auto loss_of_rows = [](torch::nn::Embedding table, const at::Tensor& rows) {
    return table(rows).pow(2).sum(1).mean();
  };
  for (int step = 0; step < kSteps; ++step) {
    plain.zero_grad();
    loss_of_rows(alone, rows_of(step)).backward();
    plain.step();
  }
  for (const at::Device device : devices()) {
    SCOPED_TRACE(device.str());
    torch::nn::Embedding table = make_table();
    table->to(device);
    DistributedOptimizer optimizer(optim::SGD(table->parameters(), 0.5), table->named_parameters(),
                                   {.name = label("table", device), .sparse_as_dense = false});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of_rows(table, rows_of(step).narrow(0, 6 * rank(), 6).to(device)).backward();
      EXPECT_EQ(table->weight.grad().layout(), at::kSparse);
      optimizer.step();
    }
    EXPECT_TRUE(at::allclose(table->weight.cpu(), alone->weight, 1e-5, 1e-6));
  }
}

TEST_F(RealGpu, MessagesGoAroundTheRing) {
  if (size() < 2) return;
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  for (const at::Device device : devices()) {
    at::Tensor mine = at::zeros({1 << 18}, at::TensorOptions().device(device));
    const at::Tensor got = at::empty_like(mine);
    for (int step = 0; step < 20; ++step) {
      for (int i = 0; i < 10; ++i) mine.add_(0.1F);
      mine.fill_(static_cast<float>(100 * rank() + step));
      const Handle sent = send_async(mine, next);
      recv(got, previous);
      const at::Tensor doubled = got * 2;
      EXPECT_EQ(doubled.min().item<float>(), static_cast<float>(2 * (100 * previous + step)));
      EXPECT_EQ(doubled.max().item<float>(), static_cast<float>(2 * (100 * previous + step)));
      (void)sent.wait();
    }
  }
}

TEST_F(RealGpu, CollectivesOfEveryType) {
  for (const at::Device device : devices()) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                       at::kByte, at::kInt, at::kLong}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " on " + device.str());
      const std::string name = label(c10::toString(dtype), device);
      const auto options = at::TensorOptions().dtype(dtype).device(device);
      const auto filled = [&](int64_t value) { return at::full({3, 5}, value, options); };
      const at::Tensor sum =
          allreduce(filled(rank() + 1), {.name = "sum." + name, .op = ReduceOp::Sum});
      EXPECT_TRUE(sum.equal(filled(size() * (size() + 1) / 2)));
      const at::Tensor sent =
          broadcast(filled(rank() + 7), {.name = "broadcast." + name, .root = 0});
      EXPECT_TRUE(sent.equal(filled(7)));
      std::vector<at::Tensor> rows;
      for (int64_t other = 0; other < size(); ++other) rows.push_back(filled(other));
      EXPECT_TRUE(allgather(filled(rank()), {.name = "gather." + name}).equal(at::cat(rows)));
    }
  }
}

// Goes through the memory of the host, beside what NCCL does: all at the same time, round after
// round.
TEST_F(RealGpu, WhatNcclDoesNotHave) {
  for (const at::Device device : devices()) {
    const auto filled = [&](double value, at::ScalarType dtype, int64_t count) {
      return at::full({count}, value, at::TensorOptions().dtype(dtype).device(device));
    };
    const double sum = size() * (size() + 1) / 2.0;
    for (int round = 0; round < 10; ++round) {
      const int64_t count = 1000 << round;
      const auto named = [&](const char* name, ReduceOp op) {
        return AllreduceOptions{.name = label(name, device), .op = op};
      };
      const at::Tensor by_nccl = filled(rank() + 1, at::kFloat, count);
      const at::Tensor vector = filled(round + 1, at::kFloat, count);  // the same on all ranks
      const std::vector<Handle> handles{
          allreduce_async_(vector, named("adasum", ReduceOp::Adasum)),
          allreduce_async_(by_nccl, named("sum", ReduceOp::Sum)),
          allreduce_async(filled(rank() + 1, at::kShort, count), named("short", ReduceOp::Sum)),
          allreduce_async(filled(1 << rank(), at::kInt, count), named("bits", ReduceOp::BitOr)),
          allreduce_async(filled(rank() + 1, at::kInt, count), named("mean", ReduceOp::Average))};
      std::vector<at::Tensor> results;
      for (const Handle& handle : handles) results.push_back(handle.wait());
      EXPECT_TRUE(at::allclose(results[0], filled(round + 1, at::kFloat, count), 1e-6));
      EXPECT_TRUE(results[1].equal(filled(sum, at::kFloat, count)));
      EXPECT_TRUE(results[2].equal(filled(sum, at::kShort, count)));
      EXPECT_TRUE(results[3].equal(filled((1 << size()) - 1, at::kInt, count)));
      EXPECT_TRUE(results[4].equal(filled(std::floor(sum / size()), at::kInt, count)));
    }
  }
}

// The collective begins after what its stream has been given, and what comes next comes after it.
TEST_F(RealGpu, ResultsFollowTheStreamOfTheProgram) {
  for (const at::Device device : devices()) {
    at::Tensor value = at::zeros({1 << 20}, at::TensorOptions().device(device));
    for (int step = 0; step < 20; ++step) {
      for (int i = 0; i < 10; ++i) value.add_(0.1F);
      value.fill_(static_cast<float>(rank() + step));
      allreduce_(value, {.name = label("stream", device), .op = ReduceOp::Sum});
      const at::Tensor doubled = value * 2;
      const auto expected = static_cast<float>(size() * (size() - 1) + 2 * size() * step);
      EXPECT_EQ(doubled.min().item<float>(), expected);
      EXPECT_EQ(doubled.max().item<float>(), expected);
    }
  }
}

}  // namespace
}  // namespace horon
