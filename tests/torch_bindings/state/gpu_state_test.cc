// What ranks give each other comes to the GPU of the rank that gets it, not to that of the rank
// that has sent it. On LibTorch's device "cuda" made of threads.
#include <filesystem>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/host_gpu/session_on_gpus.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/lr/lamb.h"
#include "horon/torch_bindings/lr/lars.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/replicas.h"

namespace horon::gpu_state_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
namespace optim = torch::optim;

at::Tensor filled(double value, c10::Device where) {
  return at::full({3}, value, at::TensorOptions(where));
}
at::Tensor weight_on(c10::Device where) { return filled(1, where).requires_grad_(true); }

void step(optim::Optimizer& optimizer, double gradient) {
  const at::Tensor& weight = std::as_const(optimizer).param_groups()[0].params()[0];
  weight.mutable_grad() = at::full_like(weight, gradient);
  optimizer.step();
}

// Here, with this value in each element.
void expect_here(const at::Tensor& tensor, double value, c10::Device here = device()) {
  EXPECT_EQ(tensor.device(), here);
  EXPECT_TRUE(tensor.detach().cpu().eq(value).all().item<bool>()) << tensor.cpu();
}

template <class Optimizer>
void expect_to_go_on_alike(Optimizer optimizer, int root) {
  const at::Tensor& weight = std::as_const(optimizer).param_groups()[0].params()[0];
  if (rank() == root) step(optimizer, 0.5);
  broadcast_parameters({{"weight", weight}}, root);
  broadcast_optimizer_state(optimizer, root);
  step(optimizer, 0.25);
  check_replicas_equal({{"weight", weight}});
  EXPECT_EQ(weight.device(), device());
}

// Derived from one of LibTorch's, so that it may keep more than Horon knows.
class Own : public optim::SGD {
 public:
  using SGD::SGD;
};

TEST(GpuState, OptimizersThatTravelAsTheySaveComeToTheGpuOfTheRank) {
  for (const int root : {0, size() - 1}) {
    expect_to_go_on_alike(Lamb({weight_on(device())}, LambOptions(0.1)), root);
    expect_to_go_on_alike(Lars({weight_on(device())}, LarsOptions(0.1).momentum(0.9)), root);
    expect_to_go_on_alike(Own({weight_on(device())}, optim::SGDOptions(0.1).momentum(0.9)), root);
  }
}

TEST(GpuState, ACheckpointOfTheCpuGoesOnOnTheGpu) {
  const std::string name = "horon_gpu_state_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  Lamb saved({weight_on(c10::kCPU)}, LambOptions(0.1)), loaded({weight_on(device())}, 0.5);
  step(saved, 0.5);
  Checkpoints checkpoints(folder);
  checkpoints.add("optimizer", saved);
  checkpoints.save(1);
  checkpoints.wait();
  Checkpoints others(folder);
  others.add("optimizer", loaded);
  ASSERT_TRUE(others.load_latest());
  for (const auto& [parameter, state] : loaded.state()) {
    EXPECT_EQ(static_cast<const LambParamState&>(*state).exp_avg().device(), device());
  }
  EXPECT_EQ(loaded.state().size(), 1U);
  step(loaded, 0.25);
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

// The state of each rank's own optimizer, too.
TEST(GpuState, ACheckpointOfEachRanksOwnOptimizerGoesOnOnTheGpu) {
  const std::string name = "horon_gpu_own_state_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  const optim::SGDOptions options = optim::SGDOptions(0.1).momentum(0.9);
  optim::SGD saved({weight_on(c10::kCPU)}, options), loaded({weight_on(device())}, options);
  step(saved, rank() + 1);
  Checkpoints checkpoints(folder, {.in_background = false});
  checkpoints.add_of_rank("optimizer", saved).save(1);
  Checkpoints others(folder);
  others.add_of_rank("optimizer", loaded);
  ASSERT_TRUE(others.load_latest());
  ASSERT_EQ(loaded.state().size(), 1U);
  const auto& state = static_cast<optim::SGDParamState&>(*loaded.state().begin()->second);
  expect_here(state.momentum_buffer(), rank() + 1);
  step(loaded, 0.25);
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

struct NetImpl : nn::Module {
  nn::BatchNorm1d norm = register_module("norm", nn::BatchNorm1d(3));
  at::Tensor table = register_buffer("table", at::zeros({2}));  // stays on the CPU
};
TORCH_MODULE(Net);

TEST(GpuState, ModulesStayWhereTheyAreWhenACheckpointOfEachRanksOwnIsLoaded) {
  const std::string name = "horon_gpu_own_module_" + std::to_string(getpid());
  const std::string folder = broadcast_bytes((fs::temp_directory_path() / name).string());
  Net saved, loaded;
  saved->norm->running_mean.fill_(rank() + 10);
  saved->table.fill_(rank() + 20);
  Checkpoints checkpoints(folder, {.in_background = false});
  checkpoints.add_of_rank("net", *saved).save(1);
  loaded->norm->to(device());
  Checkpoints others(folder);
  others.add_of_rank("net", *loaded);
  ASSERT_TRUE(others.load_latest());
  expect_here(loaded->norm->running_mean, rank() + 10);
  expect_here(loaded->norm->weight, 1);
  expect_here(loaded->table, rank() + 20, c10::kCPU);
  barrier();
  if (rank() == 0) fs::remove_all(folder);
}

TEST(GpuState, ModulesStayWhereTheyAre) {
  for (const int root : {0, size() - 1}) {
    Net net;
    net->norm->to(device());
    {
      const at::NoGradGuard no_grad;
      net->norm->weight.fill_(rank() + 10);
      net->norm->running_mean.fill_(rank());
      net->table.fill_(rank() + 20);
    }
    const at::Tensor before = net->norm->weight;
    (void)broadcast_object(net, {.root = root});
    expect_here(net->norm->weight, root + 10);
    expect_here(net->norm->running_mean, root);
    expect_here(net->table, root + 20, c10::kCPU);
    EXPECT_TRUE(before.is_same(net->norm->weight));
    EXPECT_TRUE(net->norm->weight.requires_grad());
    (void)net->norm->forward(at::ones({4, 3}, at::TensorOptions(device())));
  }
}

TEST(GpuState, TensorsComeToTheGpuOfTheRankAndThoseOfTheCpuStayThere) {
  const auto list_of = [](int r) {
    return std::vector<at::Tensor>{filled(r, device()), filled(r + 1, c10::kCPU),
                                   weight_on(device())};
  };
  for (const int root : {0, size() - 1}) {
    const auto list = broadcast_object(list_of(rank()), {.root = root});
    ASSERT_EQ(list.size(), 3U);
    expect_here(list[0], root);
    expect_here(list[1], root + 1, c10::kCPU);
    expect_here(list[2], 1);
    EXPECT_TRUE(list[2].requires_grad());
    EXPECT_TRUE(list[2].is_leaf());
    expect_here(broadcast_object(filled(rank(), device()), {.root = root}), root);
  }
  const auto all = allgather_object(list_of(rank()));
  for (int r = 0; r < size(); ++r) {
    expect_here(all[static_cast<size_t>(r)][0], r);
    expect_here(all[static_cast<size_t>(r)][1], r + 1, c10::kCPU);
  }
}

TEST(GpuState, TensorsWithinValuesToo) {
  const int root = size() - 1;
  c10::Dict<std::string, at::Tensor> dictionary;
  const at::Tensor twice = filled(rank() + 3, device());
  dictionary.insert("of the GPU", filled(rank(), device()));
  dictionary.insert("of the CPU", filled(rank() + 1, c10::kCPU));
  dictionary.insert("twice", twice);
  const c10::IValue value(c10::ivalue::Tuple::create(
      {c10::IValue(dictionary), c10::IValue(int64_t{rank()}), c10::IValue(twice)}));
  const c10::IValue got = broadcast_object(value, {.root = root});
  const auto& elements = got.toTupleRef().elements();
  const c10::impl::GenericDict tensors = elements[0].toGenericDict();
  expect_here(tensors.at("of the GPU").toTensor(), root);
  expect_here(tensors.at("of the CPU").toTensor(), root + 1, c10::kCPU);
  expect_here(tensors.at("twice").toTensor(), root + 3);
  EXPECT_EQ(elements[1].toInt(), root);
  expect_here(elements[2].toTensor(), root + 3);
  expect_here(dictionary.at("of the GPU"), rank());  // what was given is not touched
}

// What a program keeps of its own, an archive in an archive and a list of tensors among it.
struct Averages {
  void save(torch::serialize::OutputArchive& archive) const {
    torch::serialize::OutputArchive slow_ones;
    slow_ones.write("average", slow);
    archive.write("average", fast);
    archive.write("counts", counts, true);
    archive.write("slow", slow_ones);
    archive.write("all", c10::IValue(std::vector<at::Tensor>{fast, counts}));
  }
  void load(torch::serialize::InputArchive& archive) {
    torch::serialize::InputArchive slow_ones;
    archive.read("average", fast);
    archive.read("counts", counts, true);
    archive.read("slow", slow_ones);
    slow_ones.read("average", slow);
    c10::IValue list;
    archive.read("all", list);
    all = list.toTensorVector();
  }

  at::Tensor fast, slow, counts;
  std::vector<at::Tensor> all;
};

TEST(GpuState, TensorsOfAProgramsOwnThingComeToTheGpuOfTheRank) {
  for (const int root : {0, size() - 1}) {
    Averages own;
    if (rank() == root) {
      own = {weight_on(device()), filled(root + 2, device()), filled(root + 3, c10::kCPU), {}};
    }
    broadcast_state(own, root);
    expect_here(own.fast, 1);
    EXPECT_TRUE(own.fast.requires_grad());
    expect_here(own.slow, root + 2);
    expect_here(own.counts, root + 3, c10::kCPU);
    if (rank() == root) continue;
    ASSERT_EQ(own.all.size(), 2U);
    expect_here(own.all[0], 1);
    expect_here(own.all[1], root + 3, c10::kCPU);
  }
}

}  // namespace
}  // namespace horon::gpu_state_test
