#include "horon/torch_bindings/tensors/named_tensors.h"

#include <torch/nn/module.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {
namespace {

std::string shown(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined one";
  return core::concat("one of shape ", core::shape_text(tensor.sizes()), " and type ",
                      tensor.scalar_type());
}

}  // namespace

NamedTensors::NamedTensors(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) emplace_back(std::to_string(i), tensors[i]);
}

NamedTensors::NamedTensors(const torch::nn::Module& module) {
  append(module.named_parameters());
  append(module.named_buffers());
}

NamedTensors NamedTensors::parameters_of(const torch::nn::Module& module) {
  return module.named_parameters();
}

void NamedTensors::append(const torch::OrderedDict<std::string, at::Tensor>& items) {
  for (const auto& item : items) emplace_back(item.key(), item.value());
}

namespace torch_detail {

bool UniqueNames::add(const NamedTensors::Item& item, const char* what) {
  const auto& [name, tensor] = item;
  const auto [known, is_new] = seen_.emplace(name, tensor);
  if (is_new || known->second.is_same(tensor)) return is_new;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("two ", what, "s are called \"", name, "\", ", shown(known->second),
                           " and ", shown(tensor), "; give each a name of its own"));
}

}  // namespace torch_detail
}  // namespace horon
