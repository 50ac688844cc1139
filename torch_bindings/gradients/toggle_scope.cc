#include "horon/torch_bindings/gradients/toggle_scope.h"

#include <unordered_set>

#include <torch/optim/optimizer.h>

namespace horon {

ToggleScope::ToggleScope(const torch::optim::Optimizer& active,
                         std::initializer_list<const torch::optim::Optimizer*> others) {
  std::unordered_set<const void*> kept;
  for (const auto& group : active.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      kept.insert(parameter.unsafeGetTensorImpl());
    }
  }
  for (const torch::optim::Optimizer* other : others) {
    for (const auto& group : other->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (!parameter.requires_grad() || kept.contains(parameter.unsafeGetTensorImpl())) continue;
        resting_.push_back(parameter);
        resting_.back().set_requires_grad(false);
      }
    }
  }
}

ToggleScope::~ToggleScope() {
  for (at::Tensor& parameter : resting_) parameter.set_requires_grad(true);
}

}  // namespace horon
