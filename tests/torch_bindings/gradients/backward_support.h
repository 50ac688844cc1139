// For tests of what a program finds when backward() has returned.
#pragma once

#include <functional>
#include <map>
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
  return DistributedOptimizer(::torch::optim::SGD(parameters, 1.0), named, options);
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

// Recomputation: the backward of this function runs another backward. The parameter is an input of
// the function, so that the outer backward calls its hooks too, or is hidden from it.
struct Segment : ::torch::autograd::Function<Segment> {
  static at::Tensor forward(::torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& shown, const std::function<at::Tensor()>& parameter) {
    context->save_for_backward({x.detach()});
    parameter_of(context) = parameter;
    (void)shown;
    return x * parameter().detach();
  }
  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext* context,
      const ::torch::autograd::variable_list& gradient) {
    const at::AutoGradMode on(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    (x * parameter_of(context)() * gradient[0]).sum().backward();
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
  static std::function<at::Tensor()>& parameter_of(::torch::autograd::AutogradContext* context) {
    static std::map<::torch::autograd::AutogradContext*, std::function<at::Tensor()>> parameters;
    return parameters[context];
  }
};

inline at::Tensor segment(const at::Tensor& x, const at::Tensor& parameter, bool shown) {
  return Segment::apply(x, shown ? parameter : at::ones({1}),
                        std::function<at::Tensor()>([parameter] { return parameter; }));
}

}  // namespace horon::testing_support
