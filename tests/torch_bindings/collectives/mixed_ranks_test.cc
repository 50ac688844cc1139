// A job in which even ranks have no GPU, and the others one of LibTorch's device "cuda" made of
// threads: with HORON_GPU_COLLECTIVES=host they take part in the same collectives. More of this is
// tested by the files of gpu_*_test.cc that run with GPUS_OF_ODD_RANKS.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/nn.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/collectives/collective_values.h"
#include "horon/tests/torch_bindings/host_gpu/late_tensors.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/tests/torch_bindings/host_gpu/small_training.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"
#include "horon/torch_bindings/collectives/point_to_point.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/modules/sync_batch_norm.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::mixed_ranks_test {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::batch;
using testing_support::expect_equal;
using testing_support::late;
using testing_support::loss_of;
using testing_support::sum_of_all;
using testing_support::values_of;
namespace nn = torch::nn;
namespace optim = torch::optim;

bool has_gpu() { return rank() % 2 == 1; }

class MixedRanks : public testing::Test {
 protected:
  static void SetUpTestSuite() { restart("host"); }
  static void TearDownTestSuite() { restart(nullptr); }

 private:
  static void restart(const char* collectives) {
    const bool mixed = collectives != nullptr;
    std::optional<bool> odd;
    if (mixed) odd = has_gpu();
    shutdown();
    test::hide_torch_devices(odd == false);
    testing_support::host_gpus().why_no_device = odd == false ? "no NVIDIA driver" : "";
    if (mixed) {
      setenv("HORON_GPU_COLLECTIVES", collectives, 1);
    } else {
      unsetenv("HORON_GPU_COLLECTIVES");
    }
    init();
  }
};

TEST_F(MixedRanks, WorkOnWhatTheyHave) {
  EXPECT_EQ(device().is_cuda(), has_gpu());
  std::vector<int> owners;
  for (int r = 1; r < size(); r += 2) owners.push_back(r);
  const ProcessSet set = add_process_set(owners);
  if (has_gpu()) {
    EXPECT_TRUE(device(set).is_cuda());
    expect_equal(allreduce(late(at::ones({4})), {.op = ReduceOp::Sum, .process_set = set}).cpu(),
                 at::full({4}, static_cast<float>(owners.size())));
  }
  remove_process_set(set);
}

TEST_F(MixedRanks, ASetOfTheRanksWithoutOneIsOfTheCpu) {
  const ProcessSet set = add_process_set({0});
  const bool is_member = rank() == 0;
  EXPECT_TRUE(!is_member || device(set).is_cpu());
  remove_process_set(set);
}

// The tensors are fused. Which of them are on the host differs between ranks.
TEST_F(MixedRanks, TensorsOfTheHostAndOfTheGpuTravelTogether) {
  for (int round = 0; round < 20; ++round) {
    std::vector<Handle> handles;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<bool> on_host;
    for (int i = 0; i < 12; ++i) {
      shapes.push_back({(i * 37 + round) % 90, 3});
      on_host.push_back((i + round + rank()) % 3 == 0);
      const at::Tensor values = values_of(shapes.back(), at::kFloat, rank());
      const at::Tensor mine = on_host.back() ? values : late(values);
      handles.push_back(
          allreduce_async(mine, {.name = "mixture." + std::to_string(i), .op = ReduceOp::Sum}));
    }
    for (size_t i = 0; i < handles.size(); ++i) {
      const at::Tensor sum = handles[i].wait();
      EXPECT_EQ(sum.is_cuda(), has_gpu() && !on_host[i]);
      expect_equal(sum.cpu(), sum_of_all(shapes[i], at::kFloat));
    }
  }
}

// Whichever rank is the root, each rank gets the result in memory of its own kind.
TEST_F(MixedRanks, EachMayBeTheRoot) {
  for (int root = 0; root < size(); ++root) {
    for (const bool in_place : {false, true}) {
      const at::Tensor mine = late(values_of({70, 31}, at::kDouble, rank()));
      const at::Tensor got =
          in_place ? broadcast_(mine, {.root = root}) : broadcast(mine, {.root = root});
      expect_equal(got.cpu(), values_of({70, 31}, at::kDouble, root));
      if (!in_place) expect_equal(mine.cpu(), values_of({70, 31}, at::kDouble, rank()));
    }
    const at::Tensor gathered =
        gather(late(values_of({rank(), 2}, at::kFloat, rank())), {.root = root});
    if (rank() != root) continue;
    std::vector<at::Tensor> all;
    for (int r = 0; r < size(); ++r) all.push_back(values_of({r, 2}, at::kFloat, r));
    expect_equal(gathered.cpu(), at::cat(all));
  }
}

TEST_F(MixedRanks, GroupsOfRows) {
  const auto rows_of = [](int r, int64_t columns) {
    return values_of({r + 1, columns}, at::kFloat, r);
  };
  const std::vector<at::Tensor> all = grouped_allgather(
      {late(rows_of(rank(), 3)), late(rows_of(rank(), 1)), late(at::zeros({0, 2}))});
  for (size_t i = 0; i < 2; ++i) {
    std::vector<at::Tensor> rows;
    for (int r = 0; r < size(); ++r) rows.push_back(rows_of(r, i == 0 ? 3 : 1));
    expect_equal(all[i].cpu(), at::cat(rows));
  }
  EXPECT_EQ(all[2].numel(), 0);
}

TEST_F(MixedRanks, SendToEachOther) {
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  for (int round = 0; round < 3; ++round) {
    const Handle sent = send_async(late(values_of({5, 7}, at::kLong, rank())), next);
    const at::Tensor got = at::zeros({5, 7}, at::kLong).to(device());
    recv(got, previous);
    expect_equal(got.cpu(), values_of({5, 7}, at::kLong, previous));
    (void)sent.wait();
  }
}

TEST_F(MixedRanks, ACaptureIsRefusedAndTheRankWithoutAGpuIsTold) {
  // When it ends, this rank has let go of all tensors of the messages before.
  (void)allreduce(at::ones({1}), {.name = "before"});
  if (!has_gpu()) {
    EXPECT_THAT(error_of([] { allreduce(at::ones({3}), {.name = "captured"}); }),
                HasSubstr("some ranks of the process set have no GPU"));
    return expect_equal(allreduce(at::ones({3}), {.name = "after"}), at::ones({3}));
  }
  test::HostCuda& gpu =
      *testing_support::host_gpus().devices.at(static_cast<size_t>(device().index()));
  const at::Tensor x = at::ones({3}).to(device());
  const ops::CudaStream stream = torch_detail::current_stream(device()).native_handle();
  gpu.begin_capture(stream);
  // In place: in a capture LibTorch's device of threads gives no memory back.
  EXPECT_THAT(error_of([&] { allreduce_(x, {.name = "captured"}); }),
              AllOf(HasSubstr("\"captured\""), HasSubstr("a CUDA graph can't hold it")));
  (void)gpu.end_capture(stream);
  expect_equal(allreduce(x, {.name = "after"}).cpu(), at::ones({3}));
}

TEST_F(MixedRanks, ARankMayRunOutOfData) {
  if (rank() == size() - 1) {
    (void)join();
    return;
  }
  expect_equal(allreduce(late(at::full({6}, 2.0F)), {.name = "rest"}).cpu(), at::full({6}, 2.0F));
  (void)join();
}

// Batch normalization over the samples of all ranks, whose calls are compared in the same
// collectives on all of them.
nn::Sequential make_model(bool alone) {
  nn::Sequential model(nn::Linear(6, 20));
  if (alone) {
    model->push_back(nn::BatchNorm1d(20));
  } else {
    model->push_back(SyncBatchNorm(20));
  }
  model->push_back(nn::ReLU());
  model->push_back(nn::Linear(20, 3));
  testing_support::fill_parameters(model);
  return model;
}

TEST_F(MixedRanks, TrainOneModel) {
  for (const Compression compression : {Compression::None, Compression::BFloat16}) {
    for (const WaitIn wait_in : {WaitIn::Backward, WaitIn::Step}) {
      DistributedOptimizerOptions options;
      options.bucket_bytes = 400;
      options.compression = compression;
      options.wait_in = wait_in;
      nn::Sequential model = make_model(/*alone=*/false), alone = make_model(/*alone=*/true);
      model->to(device());
      DistributedOptimizer optimizer(
          optim::SGD(model->parameters(), optim::SGDOptions(0.1).momentum(0.9)),
          model->named_parameters(), options);
      optim::SGD alone_optimizer(alone->parameters(), optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 6; ++step) {
        const at::Tensor all = batch(step);
        optimizer.zero_grad();
        loss_of(model, batch(step, rank()).to(device())).backward();
        optimizer.step();
        alone_optimizer.zero_grad();
        loss_of(alone, all).backward();
        alone_optimizer.step();
      }
      const double tolerance = compression == Compression::None ? 1e-4 : 3e-2;
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        const at::Tensor found = model->parameters()[i];
        EXPECT_EQ(found.device(), device());
        EXPECT_TRUE(found.cpu().allclose(alone->parameters()[i], tolerance, tolerance))
            << found.cpu() - alone->parameters()[i];
      }
    }
  }
}

struct Training {
  explicit Training(const DistributedOptimizerOptions& options = {})
      : optimizer(optim::SGD(on_device(model)->parameters(), optim::SGDOptions(0.1).momentum(0.9)),
                  model->named_parameters(), options) {}
  static nn::Sequential& on_device(nn::Sequential& model) {
    model->to(device());
    return model;
  }
  void backward(int step) { loss_of(model, batch(step, rank()).to(device())).backward(); }
  // The same on all ranks, but for the last bits.
  void expect_one_model() const {
    for (const at::Tensor& parameter : model->parameters()) {
      const at::Tensor of_root = broadcast(parameter.detach().cpu(), {.root = 0});
      EXPECT_TRUE(parameter.cpu().allclose(of_root, 1e-5, 1e-6));
    }
  }

  nn::Sequential model = make_model(/*alone=*/false);
  DistributedOptimizer<optim::SGD> optimizer;
};

// The second backward() adds to gradients whose buckets have been sent.
TEST_F(MixedRanks, LateGradients) {
  DistributedOptimizerOptions options;
  options.wait_in = WaitIn::Step;
  Training training(options);
  for (int step = 0; step < 4; ++step) {
    training.optimizer.zero_grad();
    training.backward(2 * step);
    training.backward(2 * step + 1);
    training.optimizer.step();
  }
  EXPECT_GT(training.optimizer.statistics().late_parts, 0);
  training.expect_one_model();
}

// The ranks with a GPU make their buckets anew, and the others keep theirs.
TEST_F(MixedRanks, AModelThatMovesToTheGpusOfSome) {
  nn::Linear model(4, 3);
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model->parameters()) parameter.fill_(0.5);
  }
  DistributedOptimizer optimizer(optim::SGD(model->parameters(), 0.1), model->named_parameters());
  for (int step = 0; step < 4; ++step) {
    if (step == 2) model->to(device());
    optimizer.zero_grad();
    model->forward(at::full({2, 4}, static_cast<float>(rank() + step)).to(model->weight.device()))
        .sum()
        .backward();
    optimizer.step();
  }
  EXPECT_EQ(model->weight.device(), device());
  double moved = 0;
  for (int step = 0; step < 4; ++step) moved += 0.1 * 2 * ((size() - 1) / 2.0 + step);
  expect_equal(model->weight.detach().cpu(), at::full({3, 4}, 0.5F - static_cast<float>(moved)),
               1e-5);
}

TEST_F(MixedRanks, TheStateOfAnOptimizerGoesEitherWay) {
  for (int root = 0; root < 2; ++root) {
    Training training;
    training.backward(0);
    training.optimizer.step();
    broadcast_parameters(*training.model, root);
    broadcast_optimizer_state(training.optimizer, root);
    training.backward(1);
    training.optimizer.step();
    training.expect_one_model();
  }
}

TEST_F(MixedRanks, FusedStepsOfSomeAndPlainOnesOfOthers) {
  DistributedOptimizerOptions options;
  options.fused_step = FusedStep::WherePossible;
  nn::Linear model(4, 3);
  broadcast_parameters(*model);
  model->to(device());
  DistributedOptimizer optimizer(optim::Adagrad(model->parameters(), optim::AdagradOptions(0.1)),
                                 model->named_parameters(), options);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    model->forward(at::full({2, 4}, 1.0F + static_cast<float>(rank())).to(device()))
        .sum()
        .backward();
    EXPECT_EQ(error_of([&] { optimizer.step(); }), "no error");
  }
}

TEST_F(MixedRanks, AnOptimizerThatCallsItsClosureIsRefused) {
  nn::Linear model(4, 3);
  broadcast_parameters(*model);
  model->to(device());
  DistributedOptimizer optimizer(optim::LBFGS(model->parameters()), model->named_parameters());
  const auto closure = [&] {
    optimizer.zero_grad();
    const at::Tensor loss = model->forward(at::ones({2, 4}).to(device())).square().sum();
    loss.backward();
    return loss;
  };
  EXPECT_THAT(error_of([&] { optimizer.step(closure); }),
              AllOf(HasSubstr("LBFGS"), HasSubstr("with and without a GPU")));
}

// What the program keeps, read by its own load().
struct Best {
  at::Tensor values;
  void save(torch::serialize::OutputArchive& archive) const { archive.write("values", values); }
  void load(torch::serialize::InputArchive& archive) { archive.read("values", values); }
};

TEST_F(MixedRanks, ArchivesGoEitherWay) {
  for (int root = 0; root < 2; ++root) {
    Best best{at::full({3}, static_cast<float>(rank())).to(device())};
    broadcast_state(best, root);
    expect_equal(best.values.cpu(), at::full({3}, static_cast<float>(root)));
    EXPECT_TRUE(has_gpu() || best.values.is_cpu());
  }
}

TEST_F(MixedRanks, StartFromOneModel) {
  nn::Linear model(3, 2);
  {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model->parameters()) parameter.fill_(rank() + 1);
  }
  model->to(device());
  EXPECT_THAT(error_of([&] { check_replicas_equal(*model); }), HasSubstr("weight"));
  broadcast_parameters(*model, size() - 1);
  check_replicas_equal(*model);
  EXPECT_EQ(model->weight.device(), device());
  EXPECT_TRUE(at::equal(model->weight.cpu(), at::full({2, 3}, static_cast<float>(size()))));
}

}  // namespace
}  // namespace horon::mixed_ranks_test
