// The factor by which LARS and LAMB adapt the step of a layer, and what the two share.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

namespace horon::torch_detail {

// The L2 norm of all elements: a number in float64, on the tensor's device, for which the host does
// not wait. On the CPU it has the same bits on all ranks, whatever their threads and CPUs.
at::Tensor layer_norm_of(const at::Tensor& tensor);

// numerator / denominator, and 1 where one of them is 0 (a layer of zeros, or nothing to do).
at::Tensor layer_ratio(const at::Tensor& numerator, const at::Tensor& denominator);
double layer_ratio(double numerator, double denominator);

// The gradient of a parameter for an optimizer that computes norms of layers. Throws
// Error(InvalidArgument) that names the optimizer where it is sparse.
const at::Tensor& dense_gradient(const at::Tensor& parameter, const char* optimizer);

// Optimizer::step(): calls the closure, with gradients enabled, then `update` with each parameter
// that has a gradient and the options of its group. Returns the loss.
template <class Options, class Update>
at::Tensor step_layers(std::vector<::torch::optim::OptimizerParamGroup>& groups,
                       const ::torch::optim::Optimizer::LossClosure& closure,
                       const Update& update) {
  const at::NoGradGuard no_grad;
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  for (auto& group : groups) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) update(parameter, options);
    }
  }
  return loss;
}

[[noreturn]] void refuse_options(const char* optimizer);

// The options of a group that an optimizer gets, or the optimizer's defaults. Throws
// Error(InvalidArgument) that names the optimizer if the group's options are of another one.
template <class Options>
const Options& options_of(const ::torch::optim::OptimizerParamGroup& group,
                          const ::torch::optim::OptimizerOptions& defaults, const char* optimizer) {
  const auto* const options =
      dynamic_cast<const Options*>(group.has_options() ? &group.options() : &defaults);
  if (options == nullptr) refuse_options(optimizer);
  return *options;
}

// Gives the group that Optimizer::add_param_group() has made the options that `brought` has.
void keep_options(::torch::optim::OptimizerParamGroup& made,
                  const ::torch::optim::OptimizerParamGroup& brought);

// Throws Error(InvalidArgument) that names the optimizer, the option, and its range ("from 0 up").
void check_option(bool right, const char* optimizer, const char* option, double value,
                  const char* range);

}  // namespace horon::torch_detail
