// The type of an optimizer without what was wrapped around it.
#pragma once

#include <typeinfo>

#include <torch/optim/optimizer.h>

namespace horon::torch_detail {

// What an optimizer inherits that adds no state of its own to the type it derives from.
class WrappedOptimizer {
 public:
  virtual const std::type_info& wrapped_type() const = 0;

 protected:
  ~WrappedOptimizer() = default;
};

inline const std::type_info& unwrapped_type(const ::torch::optim::Optimizer& optimizer) {
  const auto* wrapped = dynamic_cast<const WrappedOptimizer*>(&optimizer);
  return wrapped != nullptr ? wrapped->wrapped_type() : typeid(optimizer);
}

}  // namespace horon::torch_detail
