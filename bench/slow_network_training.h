// Ways to train that spare the network, each with a model of its own and LibTorch's optimizer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "horon/bench/models.h"
#include "horon/torch_bindings/gradients/power_sgd.h"
#include "horon/torch_bindings/session.h"
#include "horon/torch_bindings/state/local_sgd.h"

namespace horon::bench {

inline std::vector<at::Tensor> tensors_of(const TrainingModel& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : model.parameters) tensors.push_back(tensor);
  return tensors;
}

template <class Opt>
struct OwnTraining {
  template <class Options>
  OwnTraining(const std::string& name, const Options& options, at::Device device)
      : model(make_model(name, static_cast<uint64_t>(rank()), device)),
        optimizer(tensors_of(model), options) {}

  void backward() {
    optimizer.zero_grad();
    model.loss().backward();
  }

  TrainingModel model;
  Opt optimizer;
};

template <class Opt>
struct LocalSgdTraining : OwnTraining<Opt> {
  template <class Options>
  LocalSgdTraining(const std::string& name, const Options& options, at::Device device,
                   int64_t steps)
      : OwnTraining<Opt>(name, options, device),
        local(this->model.parameters, {.steps = steps, .name = "bench.local." + name}) {}

  void step() {
    this->backward();
    this->optimizer.step();
    local.step();
  }

  LocalSgd local;
};

template <class Opt>
struct PowerSgdTraining : OwnTraining<Opt> {
  template <class Options>
  PowerSgdTraining(const std::string& name, const Options& options, at::Device device,
                   int64_t matrix_rank)
      : OwnTraining<Opt>(name, options, device),
        power_sgd(
            this->model.parameters,
            {.matrix_rank = matrix_rank, .start_step = 0, .name = "bench.power_sgd." + name}) {}

  void step() {
    this->backward();
    power_sgd.reduce();
    this->optimizer.step();
  }

  PowerSgd power_sgd;
};

}  // namespace horon::bench
