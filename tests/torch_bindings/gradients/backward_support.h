// For tests of what a program finds when backward() has returned.
#pragma once

#include <vector>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/optim/sgd.h>

#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/gradients/distributed_optimizer.h"

namespace horon::testing_support {

// Plain SGD of learning rate 1: the parameters show what the gradients were.
inline DistributedOptimizer<::torch::optim::SGD> sgd(
    const NamedTensors& named, const GradientReducerOptions& options = alone()) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : named) parameters.push_back(parameter);
  return {::torch::optim::SGD(parameters, 1.0), named, options};
}

inline void expect_value(const at::Tensor& tensor, double value) {
  EXPECT_TRUE(at::allclose(tensor, at::full_like(tensor, value), 0, 1e-9))
      << tensor << "\nand not " << value;
}

// Its backward gives an undefined gradient.
struct NoGradient : ::torch::autograd::Function<NoGradient> {
  static at::Tensor forward(::torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.sum();
  }
  static ::torch::autograd::variable_list backward(::torch::autograd::AutogradContext*,
                                                   const ::torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

}  // namespace horon::testing_support
