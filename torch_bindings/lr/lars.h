// LARS: momentum SGD whose learning rate is adapted to each layer (You, Gitman and Ginsburg 2017,
// "Large Batch Training of Convolutional Networks").
//
//   horon::DistributedOptimizer optimizer(
//       horon::Lars(model->parameters(), horon::LarsOptions(3.2).weight_decay(5e-4)), *model);
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include "horon/torch_bindings/tensors/closure_order.h"

namespace horon {

// Of each parameter group, as those of LibTorch's optimizers.
struct LarsOptions : ::torch::optim::OptimizerCloneableOptions<LarsOptions> {
  LarsOptions(double lr);  // NOLINT(google-explicit-constructor): as LibTorch's
  // The global learning rate of the paper's algorithm, from 0 up.
  TORCH_ARG(double, lr);
  // m, from 0 up.
  TORCH_ARG(double, momentum) = 0.9;
  // beta, from 0 up; it is in the layer's rate too.
  TORCH_ARG(double, weight_decay) = 0;
  // The paper's eta, above 0.
  TORCH_ARG(double, trust_coefficient) = 0.001;
  // Added to the denominator, from 0 up; the paper has none.
  TORCH_ARG(double, eps) = 0;
  // false: the layer's rate is 1, as is usual for biases and the parameters of normalisation.
  TORCH_ARG(bool, adapt) = true;
  // A new lr applies to all of the momentum at once, as if it were multiplied by lr_new / lr_old
  // (Goyal et al. 2017, section 3). false: the paper's algorithm, whose momentum keeps the lr with
  // which it was gathered. The two are equal as long as lr does not change. Set it before the first
  // step.
  TORCH_ARG(bool, momentum_correction) = true;

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double lr) override;
};

struct LarsParamState : ::torch::optim::OptimizerCloneableParamState<LarsParamState> {
  TORCH_ARG(at::Tensor, momentum_buffer);  // u, or v without momentum correction

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
};

// For each parameter w with gradient g, where |x| is the L2 norm:
//
//   rate = trust_coefficient |w| / (|g| + weight_decay |w| + eps)    1 where that would be 0 or 0/0
//   u = m u + rate (g + weight_decay w)
//   w = w - lr u
//
// and without momentum correction, as the paper has it,
//
//   v = m v + lr rate (g + weight_decay w)
//   w = w - v
//
// A layer is a parameter tensor. Dense gradients; any device; the host waits for none. On the CPU
// norms are added up in float64, ranks with equal gradients make equal steps on CPUs of any kind,
// and float32 and float64 are read twice, for the norms and for the step, by LibTorch's threads.
// On a GPU LibTorch adds a layer's norm up, in float32, or in float64 for a float64 one.
class Lars : public ::torch::optim::Optimizer, public torch_detail::CallsClosureFirst {
 public:
  // The options of a group are its own, all of them; one without any has the defaults. Throw
  // Error(InvalidArgument) that names an option.
  explicit Lars(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                LarsOptions defaults);
  explicit Lars(std::vector<at::Tensor> parameters, LarsOptions defaults);

  // Throws as the constructors do. Hides Optimizer's own: from LibTorch 2.12 on that gives a group
  // the defaults instead of the group's options, if it does not know the optimizer.
  void add_param_group(const ::torch::optim::OptimizerParamGroup& group);

  // The closure is called first, with gradients enabled. Throws Error(InvalidArgument) for a sparse
  // gradient; parameters before it have moved.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

 private:
  at::Tensor& momentum_of(const at::Tensor& parameter);
  void update(const at::Tensor& parameter, const LarsOptions& options);
};

}  // namespace horon
