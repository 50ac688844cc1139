#include "horon/torch_bindings/gradients/distributed_optimizer.h"

#include <unordered_map>
#include <unordered_set>

#include <ATen/ops/full_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/fused_step.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"
#include "horon/torch_bindings/gradients/shard_owners.h"
#include "horon/torch_bindings/gradients/state_shards.h"
#include "horon/torch_bindings/gradients/step_scaling.h"
#include "horon/torch_bindings/tensors/closure_order.h"

namespace horon::torch_detail {
namespace {

std::vector<const void*> identities_of(const OptimizerSteps::Groups& groups) {
  std::vector<const void*> identities;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      identities.push_back(parameter.unsafeGetTensorImpl());
    }
  }
  return identities;
}

// Those without a name are called after their position.
NamedTensors name_by_position(const OptimizerSteps::Groups& groups,
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
  for (const auto& [name, parameter] : name_by_position(groups, found)) {
    result.emplace_back(name, parameter);
  }
  return result;
}

// While it lives, gradients are measured as their buckets arrive.
class Measuring {
 public:
  Measuring(std::function<void(const at::Tensor&)>& on_settled, StepScaling& scaling)
      : on_settled_(on_settled) {
    if (!scaling.needs_norm()) return;
    on_settled_ = [&scaling](const at::Tensor& parameter) { scaling.measure(parameter); };
  }
  ~Measuring() { on_settled_ = nullptr; }
  Measuring(const Measuring&) = delete;
  Measuring& operator=(const Measuring&) = delete;

 private:
  std::function<void(const at::Tensor&)>& on_settled_;
};

[[noreturn]] void refuse_to_save(const std::type_info& type, const char* why) {
  throw Error(ErrorCode::InvalidArgument,
              core::concat("save(): ", c10::demangle(type.name()), " ", why));
}

}  // namespace

void require_unsharded(const DistributedOptimizerOptions& options, const char* optimizer) {
  if (!options.shard_optimizer_state) return;
  throw Error(
      ErrorCode::InvalidArgument,
      core::concat("DistributedOptimizer: shard_optimizer_state doesn't work with ", optimizer,
                   "; leave it out, or pass an optimizer such as SGD or Adam by value"));
}

::torch::optim::Optimizer& not_null(::torch::optim::Optimizer* optimizer) {
  if (optimizer != nullptr) return *optimizer;
  throw Error(ErrorCode::InvalidArgument, "DistributedOptimizer: the optimizer is a null pointer");
}

void require_no_state(const ::torch::optim::Optimizer& optimizer, const std::type_info& type) {
  if (optimizer.state().empty()) return;
  refuse_to_save(type,
                 "has state but no save(), so its archive would be empty; write a save() for it");
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
    : owners_(options.shard_optimizer_state
                  ? share_out(parameters_of(groups, named), options.process_set)
                  : nullptr),
      reducer_({}, parameters_of(groups, named), options, owners_),
      known_(identities_of(groups)),
      fused_(std::make_unique<FusedUpdate>(options.fused_step)),
      scaling_(std::make_unique<StepScaling>(options)) {
  if (owners_ == nullptr) return;
  shards_ =
      std::make_unique<StateShards>(reducer_.name(), options.process_set, owners_,
                                    !options.shard_gradients, parameters_of(groups, named), groups);
  if (!options.shard_gradients) return;
  scaling_->add_up_over_owners(
      [this](const at::Tensor& found) { return shards_->sum_of_owners(found); });
}

OptimizerSteps::~OptimizerSteps() = default;

// add_param_group() is not virtual, and params() may be changed: a step looks at all of them.
bool OptimizerSteps::knows(const Groups& groups) const {
  auto known = known_.begin();
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (known == known_.end() || *known != parameter.unsafeGetTensorImpl()) return false;
      ++known;
    }
  }
  return known == known_.end();
}

void OptimizerSteps::adopt(const Groups& groups) {
  if (knows(groups)) return;
  NamedTensors added;
  for (auto [name, parameter] : name_by_position(groups, {known_.begin(), known_.end()})) {
    while (reducer_.impl_->has_name(name)) name += "'";  // it is in the place of another one
    added.emplace_back(name, parameter);
  }
  const auto add = [&] { reducer_.add_parameters(added); };
  owners_ != nullptr ? owners_->add_for(added, add) : add();
  if (shards_) shards_->add(added, groups);
  known_ = identities_of(groups);
}

void OptimizerSteps::synchronize(const Groups& groups, GradientReducer::Passes passes) {
  // First a round that is still missing, without the new parameters: other ranks have run it in
  // backward(), before they had them.
  reducer_.impl_->synchronize(passes);
  adopt(groups);
  reducer_.impl_->synchronize(passes);
}

void OptimizerSteps::before_step(const Groups& groups) {
  // Until the step the program may change what backward() has reduced, and no version counter shows
  // it (data()): so that is measured then, and what is reduced in here as it arrives.
  scaling_->forget();
  const Measuring measuring(reducer_.impl_->on_settled, *scaling_);
  reducer_.impl_->note_joins();
  if (reducer_.impl_->changed_since_synchronize()) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("gradient of \"", reducer_.unsynchronized_parameter(),
                             "\": it changed after synchronize() and before step(); call ",
                             "synchronize() again"));
  }
  if (!knows(groups)) synchronize(groups, GradientReducer::Passes::All);
  reducer_.impl_->finish_step(GradientReducer::Passes::All);
}

void OptimizerSteps::before_plain_step(const Groups& groups) {
  const int64_t rounds = reducer_.statistics().steps;
  try {
    before_step(groups);
  } catch (...) {
    const bool has_reduced = is_initialized() && (reducer_.statistics().steps > rounds ||
                                                  reducer_.impl_->is_behind_a_round());
    if (has_reduced && reducer_.impl_->leave_step() && shards_) {  // the others wait for its part
      shards_->refuse_step(core::concat("on rank ", rank(), ": ", core::current_error().what()),
                           /*after_sum=*/shards_gradients() && scaling_->needs_norm());
    }
    throw;
  }
}

bool OptimizerSteps::calls_closure_first(const ::torch::optim::Optimizer& optimizer) {
  namespace optim = ::torch::optim;
  const std::type_info& type = unwrapped_type(optimizer);
  return type == typeid(optim::SGD) || type == typeid(optim::Adam) ||
         type == typeid(optim::AdamW) || type == typeid(optim::Adagrad) ||
         type == typeid(optim::RMSprop) ||
         dynamic_cast<const CallsClosureFirst*>(&optimizer) != nullptr;
}

at::Tensor OptimizerSteps::evaluate(const Groups& groups,
                                    const ::torch::optim::Optimizer::LossClosure& closure) {
  const at::AutoGradMode with_gradients(true);
  at::Tensor loss;
  const int64_t rounds = reducer_.begin_evaluation();
  try {
    loss = closure();
    before_step(groups);  // each evaluation is a step of the reducer
  } catch (...) {
    if (reducer_.leave_evaluation(rounds)) {
      reducer_.refuse_number(core::concat("step(closure) of \"", reducer_.name(), "\": on rank ",
                                          rank(), ": ", core::current_error().what()));
    }
    throw;
  }
  // Also without a loss, as of no samples: the ranks that have one wait for all.
  std::optional<double> own;
  if (loss.defined()) {
    if (loss.numel() != 1 || loss.is_complex()) {
      const std::string why = core::concat(
          "step(closure) of \"", reducer_.name(), "\": the closure's loss is ", loss.dtype().name(),
          " ", core::shape_text(loss.sizes()), "; it must be one real number");
      reducer_.refuse_number(why);
      throw Error(ErrorCode::InvalidArgument, why);
    }
    own = loss.detach().item<double>();
  }
  const std::optional<double> of_all = reducer_.reduce_number_if_any(own);
  if (!of_all) return loss;
  if (loss.defined()) return at::full_like(loss.detach(), *of_all);
  // Rounded as the others' is, so that all decide alike.
  const bool has_type = !groups.empty() && !groups.front().params().empty();
  const at::ScalarType type = has_type ? groups.front().params().front().scalar_type() : at::kFloat;
  return at::scalar_tensor(*of_all, c10::toRealValueType(type));
}

::torch::optim::Optimizer::LossClosure OptimizerSteps::wrap(
    const ::torch::optim::Optimizer& optimizer, ::torch::optim::Optimizer::LossClosure closure) {
  if (scaling_->is_needed()) {
    throw Error(
        ErrorCode::InvalidArgument,
        core::concat(
            "step(closure) of ", c10::demangle(unwrapped_type(optimizer).name()),
            " calls the closure itself, so grad_scale, skip_nonfinite, ",
            "clip_grad_norm and clip_grad_value can't be applied; call backward() first and ",
            "step() without a closure, or scale and clip in the closure"));
  }
  if (shards_) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("step(closure) of ", c10::demangle(unwrapped_type(optimizer).name()),
                             " calls the closure itself, which shard_optimizer_state doesn't ",
                             "allow (a rank updates only its own parameters); call backward() ",
                             "first and step() without a closure"));
  }
  if (reducer_.impl_->is_mixed()) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("step(closure) of ", c10::demangle(unwrapped_type(optimizer).name()),
                             " decides by numbers that ranks with and without a GPU round ",
                             "differently, so ranks would call the closure unequally often; give ",
                             "all ranks a GPU, or none"));
  }
  (void)fused_->knows(optimizer);
  scaling_->decide(optimizer.param_groups());  // nothing; the last step may have been left out
  reducer_.impl_->note_step(false);
  (void)reducer_.begin_evaluation();  // else the weight may be that of a step that was given up
  // For the reducer each evaluation is a step; for the program all of them are one.
  const std::optional<double> weight = reducer_.impl_->weight();
  return [this, weight, &groups = optimizer.param_groups(), closure = std::move(closure)] {
    if (weight) reducer_.set_weight(*weight);
    return evaluate(groups, closure);
  };
}

at::Tensor OptimizerSteps::make_step(::torch::optim::Optimizer& optimizer,
                                     const std::function<at::Tensor()>& own_step) {
  unscaled_by_.reset();
  const bool may_fuse = fused_->knows(optimizer);
  reducer_.impl_->note_step(false);
  scaling_->decide(optimizer.param_groups());
  if (scaling_->skips()) return {};
  const auto step = [&]() -> at::Tensor {
    if (may_fuse) {
      if (scaling_->repeats() || scaling_->needs_apply()) scaling_->apply(optimizer.param_groups());
      const bool fused = fused_->update(optimizer, scaling_->factor());
      // If the state is shared out, each parameter is rounded on one rank only.
      reducer_.impl_->note_step(fused_->rounded_otherwise() && !shards_);
      if (fused) return {};
    }
    scaling_->apply(optimizer.param_groups());
    return own_step();
  };
  if (!shards_) return step();
  scaling_->apply(optimizer.param_groups());  // to all gradients, of which the step sees some
  return shards_->step(optimizer, step);
}

void OptimizerSteps::consolidate_state(::torch::optim::Optimizer& optimizer,
                                       std::optional<int> to) const {
  if (shards_) shards_->consolidate(optimizer, to.value_or(shards_->ranks().front()));
}
void OptimizerSteps::note_state_loaded() const {
  if (shards_) shards_->note_loaded();
}
void OptimizerSteps::keep_own_state(::torch::optim::Optimizer& optimizer) const {
  if (shards_) shards_->keep_own(optimizer);
}
std::vector<int> OptimizerSteps::ranks_of_state() const {
  return shards_ ? shards_->ranks() : std::vector<int>();
}
void OptimizerSteps::require_whole_state() const {
  if (shards_) shards_->require_whole();
}

void OptimizerSteps::before_bucket(std::function<void(const BucketView&)> function) {
  before_bucket_ = std::move(function);
  set_bucket_functions();
}

void OptimizerSteps::on_submitted(std::function<void(const BucketView&)> function) {
  on_submitted_ = std::move(function);
  set_bucket_functions();
}

// The reducer takes a single function.
void OptimizerSteps::set_bucket_functions() {
  if (!before_bucket_ && !on_submitted_) return reducer_.before_bucket(nullptr);
  reducer_.before_bucket([this](const BucketView& bucket) {
    if (before_bucket_) before_bucket_(bucket);
    if (on_submitted_) on_submitted_(bucket);
  });
}

void OptimizerSteps::on_reduced(std::function<void(const BucketView&)> function) {
  if (function) reducer_.impl_->require_whole_gradients("on_reduced()");
  reducer_.impl_->on_reduced = std::move(function);
}

void OptimizerSteps::leave_out() {
  unscaled_by_.reset();
  reducer_.impl_->finish_step(GradientReducer::Passes::Any);
  reducer_.impl_->note_step(false);
  scaling_->leave_out();
}

void OptimizerSteps::set_grad_scale(double scale) { scaling_->set_grad_scale(scale); }
void OptimizerSteps::set_skip_nonfinite(bool skip) { scaling_->set_skip_nonfinite(skip); }
double OptimizerSteps::grad_scale() const { return scaling_->grad_scale(); }
bool OptimizerSteps::skip_nonfinite() const { return scaling_->skip_nonfinite(); }
void OptimizerSteps::note_unscaled(double scale) {
  unscaled_by_ = scale;
  unscaled_round_ = reducer_.statistics().steps;
}
std::optional<double> OptimizerSteps::unscaled_by() const {
  return reducer_.statistics().steps == unscaled_round_ ? unscaled_by_ : std::nullopt;
}
bool OptimizerSteps::shards_gradients() const {
  return shards_ != nullptr && reducer_.options().shard_gradients;
}
std::optional<bool> OptimizerSteps::found_by_owners(const std::function<bool()>& found) const {
  if (!shards_gradients()) return std::nullopt;
  const at::Tensor own = at::scalar_tensor(found() ? 1 : 0, at::kDouble);
  return shards_->sum_of_owners(own).item<double>() > 0;
}
bool OptimizerSteps::step_skipped() const { return scaling_->skips(); }
std::optional<double> OptimizerSteps::grad_norm() const { return scaling_->norm(); }

void OptimizerSteps::set_fused_step(FusedStep wish) {
  fused_->set_wish(wish);
  reducer_.impl_->note_step(false);  // a difference between ranks ends here
}

std::string OptimizerSteps::fused_step_refusal(const Groups& groups) const {
  const FusedRefusal& refusal = fused_->refusal();
  if (!refusal.parameter) return refusal.why;
  const auto [group, position] = *refusal.parameter;
  const std::string name = reducer_.impl_->name_of(groups.at(group).params().at(position));
  if (name.empty()) {  // of a rank outside the process set, where the reducer has none
    return core::concat("parameter ", position, " of group ", group, ": ", refusal.why);
  }
  return core::concat("parameter \"", name, "\": ", refusal.why);
}

}  // namespace horon::torch_detail
