#include "horon/torch_bindings/tensors/named_tensors.h"

#include <torch/nn/module.h>

namespace horon {

NamedTensors::NamedTensors(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) items_.emplace_back(std::to_string(i), tensors[i]);
}

NamedTensors::NamedTensors(const torch::nn::Module& module) {
  append(module.named_parameters());
  append(module.named_buffers());
}

void NamedTensors::append(const torch::OrderedDict<std::string, at::Tensor>& items) {
  for (const auto& item : items) items_.emplace_back(item.key(), item.value());
}

}  // namespace horon
