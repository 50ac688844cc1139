#include "horon/torch_bindings/lr/lars.h"

#include <ATen/ops/zeros_like.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>

#include "horon/torch_bindings/lr/layer_ratio.h"
#include "horon/torch_bindings/lr/layer_step.h"

namespace horon {

LarsOptions::LarsOptions(double lr) : lr_(lr) {}

double LarsOptions::get_lr() const { return lr(); }
void LarsOptions::set_lr(double lr) { this->lr(lr); }

void LarsOptions::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(trust_coefficient);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(adapt);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_correction);
}

void LarsOptions::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, momentum);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, trust_coefficient);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, adapt);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, momentum_correction);
}

void LarsParamState::serialize(::torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(momentum_buffer);
}

void LarsParamState::serialize(::torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(at::Tensor, momentum_buffer);
}

namespace {

void check_options(const LarsOptions& options) {
  const auto check = [](bool right, const char* option, double value,
                        const char* range = "0 or more") {
    torch_detail::check_option(right, "Lars", option, value, range);
  };
  check(options.lr() >= 0, "lr", options.lr());
  check(options.momentum() >= 0, "momentum", options.momentum());
  check(options.weight_decay() >= 0, "weight_decay", options.weight_decay());
  check(options.trust_coefficient() > 0, "trust_coefficient", options.trust_coefficient(),
        "a number above 0");
  check(options.eps() >= 0, "eps", options.eps());
}

}  // namespace

Lars::Lars(const std::vector<::torch::optim::OptimizerParamGroup>& groups, LarsOptions defaults)
    : Optimizer(std::vector<::torch::optim::OptimizerParamGroup>(),
                std::make_unique<LarsOptions>(defaults)) {
  for (const auto& group : groups) add_param_group(group);
}

Lars::Lars(std::vector<at::Tensor> parameters, LarsOptions defaults)
    : Lars({::torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

void Lars::add_param_group(const ::torch::optim::OptimizerParamGroup& group) {
  check_options(torch_detail::options_of<LarsOptions>(group, defaults(), "Lars"));
  Optimizer::add_param_group(group);
  torch_detail::keep_options(param_groups_.back(), group);
}

at::Tensor& Lars::momentum_of(const at::Tensor& parameter) {
  auto& entry = state_[parameter.unsafeGetTensorImpl()];
  if (entry == nullptr) {
    auto fresh = std::make_unique<LarsParamState>();
    fresh->momentum_buffer(at::zeros_like(parameter.detach()));
    entry = std::move(fresh);
  }
  return static_cast<LarsParamState&>(*entry).momentum_buffer();
}

void Lars::update(const at::Tensor& parameter, const LarsOptions& options) {
  const at::Tensor& gradient = torch_detail::dense_gradient(parameter, "Lars");
  at::Tensor none;
  at::Tensor& kept = options.momentum() == 0 ? none : momentum_of(parameter);
  if (torch_detail::has_layer_step(parameter)) {
    torch_detail::lars_step(parameter, gradient, kept,
                            {.lr = options.lr(),
                             .momentum = options.momentum(),
                             .weight_decay = options.weight_decay(),
                             .momentum_correction = options.momentum_correction()},
                            {.adapts = options.adapt(),
                             .trust_coefficient = options.trust_coefficient(),
                             .eps = options.eps()});
    return;
  }
  at::Tensor move = options.weight_decay() == 0 ? gradient.clone()
                                                : gradient.add(parameter, options.weight_decay());
  if (options.adapt()) {
    const at::Tensor of_weights = torch_detail::layer_norm_of(parameter.detach());
    at::Tensor denominator = torch_detail::layer_norm_of(gradient);
    denominator.add_(of_weights, options.weight_decay()).add_(options.eps());
    move.mul_(torch_detail::layer_ratio(of_weights.mul(options.trust_coefficient()), denominator));
  }
  if (!kept.defined()) {
    parameter.sub_(move, options.lr());
    return;
  }
  kept.mul_(options.momentum()).add_(move, options.momentum_correction() ? 1 : options.lr());
  parameter.sub_(kept, options.momentum_correction() ? options.lr() : 1);
}

at::Tensor Lars::step(LossClosure closure) {
  return torch_detail::step_layers<LarsOptions>(
      param_groups_, closure, [this](const at::Tensor& parameter, const LarsOptions& options) {
        update(parameter, options);
      });
}

void Lars::save(::torch::serialize::OutputArchive& archive) const {
  ::torch::optim::serialize<LarsParamState, LarsOptions>(archive, *this);
}

void Lars::load(::torch::serialize::InputArchive& archive) {
  ::torch::optim::serialize<LarsParamState, LarsOptions>(archive, *this);
}

}  // namespace horon
