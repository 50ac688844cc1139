// A small training with everything that a checkpoint must hold: dropout, batch norm, momentum,
// shuffling, a schedule.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "horon/ops/session/session.h"
#include "horon/torch_bindings/checkpoint/checkpoints.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::testing_support {

constexpr size_t kSamples = 60;

struct CheckpointNetImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) {
    x = torch::dropout(torch::relu(norm(first(x))), 0.3, is_training());
    return second(x);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 12));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(12));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(12, 1));
};
TORCH_MODULE(CheckpointNet);

// The learning rate falls with each step.
struct Decay {
  void save(torch::serialize::OutputArchive& archive) const {
    archive.write("steps", c10::IValue(steps));
  }
  void load(torch::serialize::InputArchive& archive) {
    c10::IValue value;
    archive.read("steps", value);
    steps = value.toInt();
  }
  double rate() const { return 0.05 * std::pow(0.9, static_cast<double>(steps)); }
  int64_t steps = 0;
};

struct Training {
  explicit Training(const std::string& folder, CheckpointOptions options = {})
      : checkpoints(folder, options) {
    torch::manual_seed(rank() + 1);
    const torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters()) p.copy_(torch::full_like(p, 0.01).cumsum(0));
    checkpoints.add("model", *net).add("optimizer", optimizer).add("decay", decay);
    checkpoints.add_of_rank("sampler", sampler);
  }

  void step() {
    auto indices = sampler.next(3);
    if (!indices) {
      sampler.reset();
      indices = sampler.next(3);
    }
    std::vector<int64_t> numbers(indices->begin(), indices->end());
    drawn.insert(drawn.end(), numbers.begin(), numbers.end());
    const at::Tensor x = torch::tensor(numbers).view({-1, 1}) * torch::linspace(0.1, 0.6, 6);
    optimizer.zero_grad();
    (net->forward(x.sin()) - x.cos().sum(1, true)).pow(2).mean().backward();
    for (auto& group : optimizer.param_groups()) group.options().set_lr(decay.rate());
    optimizer.step();
    ++decay.steps;
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }

  // All that the next step depends on, bit by bit. The first number is of the rank's own generator.
  std::string bits() {
    std::string all(reinterpret_cast<const char*>(&decay.steps), sizeof decay.steps);
    const auto add = [&](const at::Tensor& tensor) {
      const at::Tensor rows = tensor.detach().contiguous();
      all.append(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
    };
    for (const at::Tensor& tensor : net->parameters()) add(tensor);
    for (const at::Tensor& tensor : net->buffers()) add(tensor);
    add(torch::rand({1}));
    return all;
  }

  CheckpointNet net;
  DistributedOptimizer<torch::optim::SGD> optimizer{
      torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)), *net};
  Decay decay;
  DistributedRandomSampler sampler{kSamples, {.seed = 11}};
  std::vector<int64_t> drawn;  // by this rank
  Checkpoints checkpoints;
};

}  // namespace horon::testing_support
