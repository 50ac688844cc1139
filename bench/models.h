// Models for timing a training step, each with one fixed batch: a small convolutional network,
// ResNet-18, 200 small linear layers, a transformer, 2,000 tiny parameters; and, for GPUs, models
// of the size of ResNet-50 and GPT-2.
// ddp_training_step.py has the same models.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace horon::bench {

struct TrainingModel {
  std::string name;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  // The forward pass on the batch. The function keeps the model and the batch alive.
  std::function<at::Tensor()> loss;
};

// "cnn", "resnet18", "deep", "gpt", "tiny"
const std::vector<std::string>& model_names();
// "resnet50", "gpt2"
const std::vector<std::string>& large_model_names();

// Parameters are made from seed 1, so they are the same on all ranks. The batch is made from
// `batch_seed`. Throws Error(InvalidArgument) for an unknown name.
TrainingModel make_model(const std::string& name, uint64_t batch_seed,
                         at::Device device = at::kCPU);

}  // namespace horon::bench
