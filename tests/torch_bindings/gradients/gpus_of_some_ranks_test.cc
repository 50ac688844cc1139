// A job in which rank 0 has no GPU, a simulation say, and the others train on theirs.
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/point_to_point.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::gpus_of_some_ranks_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
namespace optim = torch::optim;

constexpr int kSteps = 4;

class GpusOfSomeRanks : public testing::Test {
 protected:
  void SetUp() override {
    shutdown_and_start(rank() == 0 ? "no NVIDIA driver" : "");
    std::vector<int> others(static_cast<size_t>(size() - 1));
    std::iota(others.begin(), others.end(), 1);
    trainers_ = add_process_set(others);
  }
  void TearDown() override {
    remove_process_set(trainers_);
    shutdown_and_start("");
  }
  static void shutdown_and_start(const std::string& why_no_device) {
    shutdown();
    testing_support::host_gpus().why_no_device = why_no_device;
    init();
  }

  ProcessSet trainers_;
};

class GpusOfNoRank : public GpusOfSomeRanks {
 protected:
  void SetUp() override { shutdown_and_start("the driver is too old"); }
  void TearDown() override { shutdown_and_start(""); }
};

TEST_F(GpusOfNoRank, WhereLibTorchHasSomeIsSaid) {
  testing::internal::CaptureStderr();
  const bool is_cpu = device().is_cpu();
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(is_cpu);
  const bool is_said = told.find(
                           "device() is the CPU: LibTorch has 4 GPUs here, but Horon can "
                           "use none: the driver is too old") != std::string::npos;
  EXPECT_EQ(is_said, rank() == 0) << told;
}

// The rows of all trainers, of which each takes its part.
at::Tensor all_rows(int step, int trainers) {
  const at::Tensor values = at::arange(4 * trainers * 3, at::kFloat).add_(step).mul_(0.3).sin();
  return values.view({-1, 3});
}

template <class Optimizer>
void train(Optimizer& optimizer, torch::nn::Linear& model, const at::Tensor& input) {
  optimizer.zero_grad();
  model->forward(input).pow(2).mean().backward();
  optimizer.step();
}

torch::nn::Linear make_model() {
  torch::nn::Linear model(3, 2);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
  return model;
}

TEST_F(GpusOfSomeRanks, TrainInAProcessSet) {
  if (rank() == 0) {
    for (int step = 0; step < kSteps; ++step) {
      (void)broadcast(at::full({1}, step, at::kFloat), {.name = "step"});
    }
    return;
  }
  const c10::Device gpu = device(trainers_);
  ASSERT_TRUE(gpu.is_cuda());
  torch::nn::Linear model = make_model();
  model->to(gpu);
  DistributedOptimizerOptions options;
  options.process_set = trainers_;
  DistributedOptimizer<optim::SGD> optimizer(optim::SGD(model->parameters(), 0.1),
                                             model->named_parameters(), options);
  torch::nn::Linear alone = make_model();
  optim::SGD alone_optimizer(alone->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor told = broadcast(at::zeros({1}), {.name = "step"});
    ASSERT_EQ(told.item<float>(), static_cast<float>(step));
    const at::Tensor rows = all_rows(step, trainers_.size());
    train(optimizer, model, rows.narrow(0, 4 * trainers_.rank(), 4).to(gpu));
    train(alone_optimizer, alone, rows);
  }
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    EXPECT_TRUE(at::allclose(model->parameters()[i].cpu(), alone->parameters()[i], 1e-5, 1e-6));
  }
}

TEST_F(GpusOfSomeRanks, OthersAreToldWhy) {
  EXPECT_THAT(error_of([] { (void)device(); }),
              AllOf(HasSubstr("rank 0 has no GPU (no NVIDIA driver)"), HasSubstr("process set"),
                    HasSubstr("HORON_GPU_COLLECTIVES=host")));
  if (rank() == 0) {
    EXPECT_THAT(error_of([&] { (void)device(trainers_); }), HasSubstr("rank 0 is not in"));
    EXPECT_THAT(error_of([] { allreduce(at::ones({4}), {.name = "x"}); }),
                HasSubstr("rank 0 has no GPU"));
    return;
  }
  const at::Tensor on_gpu = at::ones({4}).to(device(trainers_));
  EXPECT_THAT(
      error_of([&] { allreduce(on_gpu, {.name = "x"}); }),
      AllOf(HasSubstr("tensor \"x\": it is in cuda memory"), HasSubstr("rank 0 has no GPU")));
  EXPECT_TRUE(at::equal(allreduce(on_gpu, {.op = ReduceOp::Sum, .process_set = trainers_}).cpu(),
                        at::full({4}, static_cast<float>(trainers_.size()))));
}

TEST_F(GpusOfSomeRanks, SendToEachOther) {
  const at::Tensor on_cpu = at::full({4}, static_cast<float>(rank()));
  if (rank() == 0) {
    EXPECT_THAT(error_of([&] { recv(on_cpu, 1); }), HasSubstr("rank 0 has no GPU"));
    EXPECT_TRUE(at::equal(recv(on_cpu, 1), at::full({4}, 1.0F)));
    return;
  }
  const at::Tensor on_gpu = on_cpu.to(device(trainers_));
  if (rank() == 1) {
    EXPECT_THAT(
        error_of([&] { send(on_gpu, 0); }),
        AllOf(HasSubstr("\"send 1 to 0, tag 0"), HasSubstr("messages between ranks can't use"),
              HasSubstr("rank 0 has no GPU"), HasSubstr("move it to the host")));
    send(on_cpu, 0);
    send(on_gpu, 2);
  } else if (rank() == 2) {
    EXPECT_TRUE(at::equal(recv(on_gpu, 1).cpu(), at::full({4}, 1.0F)));
  }
}

}  // namespace
}  // namespace horon::gpus_of_some_ranks_test
