#include "horon/torch_bindings/lr/lamb.h"

#include <cmath>
#include <utility>

#include <ATen/ops/zeros_like.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/lr/layer_ratio.h"
#include "horon/torch_bindings/lr/layer_step.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {

LambOptions::LambOptions(double lr) : lr_(lr) {}

double LambOptions::get_lr() const { return lr(); }
void LambOptions::set_lr(double lr) { this->lr(lr); }

void LambOptions::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(least_norm);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(largest_norm);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(adapt);
}

void LambOptions::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, least_norm);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, largest_norm);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, adapt);
}

void LambParamState::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(exp_avg_sq);
}

void LambParamState::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, exp_avg_sq);
}

namespace {

void check_options(const LambOptions& options) {
  const auto [beta1, beta2] = options.betas();
  const auto check = [](bool right, const char* option, double value,
                        const char* range = "0 or more") {
    torch_detail::check_option(right, "Lamb", option, value, range);
  };
  check(options.lr() >= 0, "lr", options.lr());
  check(beta1 >= 0 && beta1 < 1, "beta1", beta1, "one from 0 to below 1");
  check(beta2 >= 0 && beta2 < 1, "beta2", beta2, "one from 0 to below 1");
  check(options.eps() >= 0, "eps", options.eps());
  check(options.weight_decay() >= 0, "weight_decay", options.weight_decay());
  check(options.least_norm() >= 0, "least_norm", options.least_norm());
  check(options.largest_norm() >= options.least_norm(), "largest_norm", options.largest_norm(),
        "least_norm or more");
}

}  // namespace

Lamb::Lamb(const std::vector<::torch::optim::OptimizerParamGroup>& groups, LambOptions defaults)
    : Optimizer(std::vector<::torch::optim::OptimizerParamGroup>(),
                std::make_unique<LambOptions>(defaults)) {
  for (const auto& group : groups) add_param_group(group);
}

Lamb::Lamb(std::vector<at::Tensor> parameters, LambOptions defaults)
    : Lamb({::torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

void Lamb::add_param_group(const ::torch::optim::OptimizerParamGroup& group) {
  check_options(torch_detail::options_of<LambOptions>(group, defaults(), "Lamb"));
  Optimizer::add_param_group(group);
  torch_detail::keep_options(param_groups_.back(), group);
}

LambParamState& Lamb::state_of(const at::Tensor& parameter) {
  auto& entry = state_[parameter.unsafeGetTensorImpl()];
  if (entry == nullptr) {
    auto fresh = std::make_unique<LambParamState>();
    fresh->exp_avg(at::zeros_like(torch_detail::real_memory(parameter)));
    fresh->exp_avg_sq(at::zeros_like(torch_detail::real_memory(parameter)));
    entry = std::move(fresh);
  }
  return static_cast<LambParamState&>(*entry);
}

void Lamb::update(const at::Tensor& given, const LambOptions& options) {
  // The step writes to memory, in which the imaginary parts of a lazy conjugate have the other
  // sign.
  const bool is_turned = given.is_conj();
  const at::Tensor of_parameter = torch_detail::dense_gradient(given, "Lamb");
  const at::Tensor parameter = torch_detail::real_memory(given);
  const at::Tensor gradient =
      torch_detail::real_view(is_turned ? of_parameter.conj() : of_parameter);
  LambParamState& state = state_of(given);
  state.step(state.step() + 1);
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(state.step());
  const double correction1 = 1 - std::pow(beta1, steps);
  const double correction2 = 1 - std::pow(beta2, steps);
  if (torch_detail::has_layer_step(parameter)) {
    torch_detail::lamb_step(parameter, gradient, state.exp_avg(), state.exp_avg_sq(),
                            {.beta1 = beta1,
                             .beta2 = beta2,
                             .correction1 = correction1,
                             .correction2 = correction2,
                             .eps = options.eps(),
                             .weight_decay = options.weight_decay()},
                            options.lr(),
                            {.adapts = options.adapt(),
                             .least_norm = options.least_norm(),
                             .largest_norm = options.largest_norm()});
    return;
  }
  state.exp_avg().mul_(beta1).add_(gradient, 1 - beta1);
  state.exp_avg_sq().mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
  const at::Tensor root = state.exp_avg_sq().div(correction2).sqrt_().add_(options.eps());
  const at::Tensor move = state.exp_avg().div(correction1).div_(root);
  if (options.weight_decay() != 0) move.add_(parameter, options.weight_decay());
  if (options.adapt()) {
    const at::Tensor weights = torch_detail::layer_norm_of(parameter.detach())
                                   .clamp_(options.least_norm(), options.largest_norm());
    move.mul_(torch_detail::layer_ratio(weights, torch_detail::layer_norm_of(move)));
  }
  parameter.sub_(move, options.lr());
}

at::Tensor Lamb::step(LossClosure closure) {
  return torch_detail::step_layers<LambOptions>(
      param_groups_, closure, [this](const at::Tensor& parameter, const LambOptions& options) {
        update(parameter, options);
      });
}

void Lamb::save(::torch::serialize::OutputArchive& archive) const {
  ::torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
}

void Lamb::load(::torch::serialize::InputArchive& archive) {
  auto before = std::exchange(state_, {});
  try {
    ::torch::optim::serialize<LambParamState, LambOptions>(archive, *this);
    for (const auto& entry : state_) {
      const at::Tensor& average = static_cast<const LambParamState&>(*entry.second).exp_avg_sq();
      if (!average.is_complex()) continue;
      throw Error(
          ErrorCode::InvalidArgument,
          core::concat("Lamb: the archive has complex averages for a parameter of shape ",
                       core::shape_text(average.sizes()), ", as older versions of Horon saved ",
                       "them; now the real and the imaginary part have one each. Load the model ",
                       "without its optimizer"));
    }
  } catch (...) {
    state_ = std::move(before);
    throw;
  }
}

}  // namespace horon
