// LAMB: Adam whose step is adapted to each layer (You et al. 2019, "Large Batch Optimization for
// Deep Learning: Training BERT in 76 minutes").
//
//   horon::DistributedOptimizer optimizer(
//       horon::Lamb(model->parameters(), horon::LambOptions(2e-3).weight_decay(0.01)), *model);
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include "horon/torch_bindings/tensors/closure_order.h"

namespace horon {

// Of each parameter group, as those of LibTorch's optimizers.
struct LambOptions : ::torch::optim::OptimizerCloneableOptions<LambOptions> {
  using betas_t = std::tuple<double, double>;

  LambOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as LibTorch's
  TORCH_ARG(double, lr);          // from 0 up
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);  // from 0 to below 1
  TORCH_ARG(double, eps) = 1e-6;                            // from 0 up
  TORCH_ARG(double, weight_decay) = 0;                      // the paper's lambda, from 0 up
  // The norm of the weights is held between these (the paper's phi).
  TORCH_ARG(double, least_norm) = 0;
  TORCH_ARG(double, largest_norm) = std::numeric_limits<double>::infinity();
  // false: the layer's ratio is 1, which makes it AdamW but for eps and for where the decay is
  // applied.
  TORCH_ARG(bool, adapt) = true;

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double lr) override;
};

struct LambParamState : ::torch::optim::OptimizerCloneableParamState<LambParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(at::Tensor, exp_avg);
  TORCH_ARG(at::Tensor, exp_avg_sq);

 public:
  void serialize(::torch::serialize::InputArchive& archive) override;
  void serialize(::torch::serialize::OutputArchive& archive) const override;
};

// For each parameter w with gradient g in step t (from 1), where |x| is the L2 norm and phi() holds
// its argument between least_norm and largest_norm:
//
//   m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g g
//   r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay w
//   w = w - lr phi(|w|) / |r| r          the ratio is 1 where one of the two norms is 0
//
// A layer is a parameter tensor; of a complex one the real and the imaginary parts, each with an
// average of its own. Dense gradients; any device; the host waits for none. On the CPU
// norms are added up in float64, ranks with equal gradients make equal steps on CPUs of any kind,
// and float32 and float64 take two passes, for the norms and for the step, by LibTorch's threads.
// On a GPU LibTorch adds a layer's norm up, in float32, or in float64 for a float64 one.
class Lamb : public ::torch::optim::Optimizer, public torch_detail::CallsClosureFirst {
 public:
  // The options of a group are its own, all of them; one without any has the defaults. Throw
  // Error(InvalidArgument) that names an option.
  explicit Lamb(const std::vector<::torch::optim::OptimizerParamGroup>& groups,
                LambOptions defaults = {});
  explicit Lamb(std::vector<at::Tensor> parameters, LambOptions defaults = {});

  // Throws as the constructors do. Hides Optimizer's own: from LibTorch 2.12 on that gives a group
  // the defaults instead of the group's options, if it does not know the optimizer.
  void add_param_group(const ::torch::optim::OptimizerParamGroup& group);

  // The closure is called first, with gradients enabled. Throws Error(InvalidArgument) for a sparse
  // gradient; parameters before it have moved.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(::torch::serialize::OutputArchive& archive) const override;
  // Throws Error(InvalidArgument) for complex averages, which older versions have saved.
  void load(::torch::serialize::InputArchive& archive) override;

 private:
  LambParamState& state_of(const at::Tensor& parameter);
  void update(const at::Tensor& given, const LambOptions& options);
};

}  // namespace horon
