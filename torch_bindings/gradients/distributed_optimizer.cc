#include "horon/torch_bindings/gradients/distributed_optimizer.h"

#include <unordered_map>
#include <unordered_set>

#include <ATen/ops/full_like.h>
#include <c10/util/Type.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/gradients/fused_step.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"

namespace horon::torch_detail {
namespace {

size_t count_parameters(const OptimizerSteps::Groups& groups) {
  size_t count = 0;
  for (const auto& group : groups) count += group.params().size();
  return count;
}

// Those without a name are called after their place.
NamedTensors name_by_place(const OptimizerSteps::Groups& groups,
                           const std::unordered_set<const void*>& named) {
  NamedTensors result;
  for (size_t group = 0; group < groups.size(); ++group) {
    const std::vector<at::Tensor>& parameters = groups[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (named.contains(parameters[i].unsafeGetTensorImpl())) continue;
      result.emplace_back(core::concat("param_group.", group, ".", i), parameters[i]);
    }
  }
  return result;
}

NamedTensors parameters_of(const OptimizerSteps::Groups& groups, const NamedTensors& named) {
  std::unordered_set<const void*> mine;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) mine.insert(parameter.unsafeGetTensorImpl());
  }
  NamedTensors result;
  std::unordered_set<const void*> found;
  for (const auto& [name, parameter] : named) {
    if (!mine.contains(parameter.unsafeGetTensorImpl())) continue;
    found.insert(parameter.unsafeGetTensorImpl());
    result.emplace_back(name, parameter);
  }
  for (const auto& [name, parameter] : name_by_place(groups, found)) {
    result.emplace_back(name, parameter);
  }
  return result;
}

[[noreturn]] void refuse_to_save(const std::type_info& type, const char* why) {
  throw Error(ErrorCode::InvalidArgument,
              core::concat("save(): ", c10::demangle(type.name()), " ", why));
}

}  // namespace

::torch::optim::Optimizer& not_null(::torch::optim::Optimizer* optimizer) {
  if (optimizer != nullptr) return *optimizer;
  throw Error(ErrorCode::InvalidArgument, "DistributedOptimizer was given a null pointer");
}

void require_no_state(const ::torch::optim::Optimizer& optimizer, const std::type_info& type) {
  if (optimizer.state().empty()) return;
  refuse_to_save(type, "has state but no save(), so that an archive would be empty; give it one");
}

void require_saveable(const ::torch::optim::LBFGS& optimizer) {
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto& own = static_cast<const ::torch::optim::LBFGSParamState&>(*state);
    if (!own.al().has_value()) continue;
    for (const at::Tensor& value : *own.al()) {
      if (value.defined()) continue;
      refuse_to_save(typeid(::torch::optim::LBFGS),
                     "can't be written by LibTorch after a step; save the parameters alone");
    }
  }
}

OptimizerSteps::OptimizerSteps(const Groups& groups, const NamedTensors& named,
                               const DistributedOptimizerOptions& options)
    : reducer_(parameters_of(groups, named), options),
      known_parameters_(count_parameters(groups)),
      fused_(std::make_unique<FusedUpdate>(options.fused_step)) {}

OptimizerSteps::~OptimizerSteps() = default;

// add_param_group() is not virtual: a step looks whether something was added.
void OptimizerSteps::adopt(const Groups& groups) {
  const size_t count = count_parameters(groups);
  if (count == known_parameters_) return;
  reducer_.add_parameters(name_by_place(groups, {}));  // those that it knows are left out
  known_parameters_ = count;
}

void OptimizerSteps::synchronize(const Groups& groups, GradientReducer::Passes passes) {
  // New parameters have no part in the round that is missing: other ranks have run it in
  // backward().
  reducer_.impl_->synchronize(passes);
  adopt(groups);
  reducer_.impl_->synchronize(passes);
}

void OptimizerSteps::before_step(const Groups& groups) {
  if (reducer_.impl_->changed_since_synchronize()) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("gradient of \"", reducer_.unsynchronized_parameter(),
                             "\": it came after synchronize() and before step(); call ",
                             "synchronize() again"));
  }
  if (count_parameters(groups) != known_parameters_) {
    synchronize(groups, GradientReducer::Passes::All);
  }
  reducer_.impl_->finish_step(GradientReducer::Passes::All);
}

::torch::optim::Optimizer::LossClosure OptimizerSteps::wrap(
    const Groups& groups, ::torch::optim::Optimizer::LossClosure closure) {
  return [this, &groups, closure = std::move(closure)] {
    at::Tensor loss = closure();
    before_step(groups);  // each evaluation is a step of the reducer
    if (!loss.defined()) return loss;
    const double of_all = reducer_.reduce_number(loss.detach().item<double>());
    return at::full_like(loss.detach(), of_all);
  };
}

bool OptimizerSteps::may_fuse(const ::torch::optim::Optimizer& optimizer) {
  const bool known = fused_->knows(optimizer);
  if (!known) reducer_.impl_->note_step(false);
  return known;
}

bool OptimizerSteps::fuse(::torch::optim::Optimizer& optimizer) {
  const bool fused = fused_->update(optimizer);
  reducer_.impl_->note_step(fused_->rounded_otherwise());
  return fused;
}

void OptimizerSteps::set_fused_step(FusedStep wish) {
  fused_->set_wish(wish);
  reducer_.impl_->note_step(false);  // a difference between ranks ends here
}

std::string OptimizerSteps::fused_step_refusal(const Groups& groups) const {
  const FusedRefusal& refusal = fused_->refusal();
  if (!refusal.parameter) return refusal.why;
  const auto [group, place] = *refusal.parameter;
  const std::string name = reducer_.impl_->name_of(groups.at(group).params().at(place));
  if (name.empty()) {  // of a rank outside the process set, where the reducer has none
    return core::concat("parameter ", place, " of group ", group, ": ", refusal.why);
  }
  return core::concat("parameter \"", name, "\": ", refusal.why);
}

}  // namespace horon::torch_detail
