// Four models for timing a training step, each with one fixed batch: many convolutions, few
// tensors; few large ones; very many tiny ones; a transformer. The same as in ddp_training_step.py.
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
  // Forward pass on the batch; keeps the model and the batch alive.
  std::function<at::Tensor()> loss;
};

// "cnn", "resnet18", "deep", "gpt"
const std::vector<std::string>& model_names();

// Parameters come from the seed 1 and are alike on all ranks; the batch comes from `batch_seed`.
// Throws Error(InvalidArgument) for a name that is none.
TrainingModel make_model(const std::string& name, uint64_t batch_seed);

}  // namespace horon::bench
