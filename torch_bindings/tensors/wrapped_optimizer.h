// The type of the optimizer inside a DistributedOptimizer, and whose steps it makes.
#pragma once

#include <typeinfo>
#include <vector>

#include <torch/optim/optimizer.h>

namespace horon::torch_detail {

// Base of optimizers that derive from another type and add no state that is saved.
class WrappedOptimizer {
 public:
  virtual const std::type_info& wrapped_type() const = 0;
  // The ranks that make its steps together, ascending.
  virtual std::vector<int> ranks_of_steps() const = 0;

 protected:
  ~WrappedOptimizer() = default;
};

inline const std::type_info& unwrapped_type(const ::torch::optim::Optimizer& optimizer) {
  const auto* wrapped = dynamic_cast<const WrappedOptimizer*>(&optimizer);
  return wrapped != nullptr ? wrapped->wrapped_type() : typeid(optimizer);
}

// Empty for an optimizer that is not wrapped.
inline std::vector<int> ranks_of_steps(const ::torch::optim::Optimizer& optimizer) {
  const auto* wrapped = dynamic_cast<const WrappedOptimizer*>(&optimizer);
  return wrapped != nullptr ? wrapped->ranks_of_steps() : std::vector<int>();
}

}  // namespace horon::torch_detail
