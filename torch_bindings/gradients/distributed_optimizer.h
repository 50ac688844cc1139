// Any optimizer of LibTorch, or one of your own, whose gradients are reduced over all ranks.
//
//   horon::DistributedOptimizer optimizer(
//       torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
//       *model, {.op = horon::ReduceOp::Average});
//   ...
//   optimizer.zero_grad();  loss.backward();  optimizer.step();
//
// DistributedOptimizer<Opt> is an Opt: schedulers, torch::save and functions that take
// torch::optim::Optimizer& work with it. When backward() returns, every .grad is reduced: clip it,
// look at it, run another backward(). gradient_reducer.h says what that asks of a program.
//
// An optimizer that the program holds as the base class stays what it is, and is used through this:
//
//   std::unique_ptr<torch::optim::Optimizer> held =
//       std::make_unique<torch::optim::Adam>(model->parameters(), 1e-3);
//   horon::DistributedOptimizer optimizer(*held, *model);  // or std::move(held)
//
// Several backward passes for one step: {.backward_passes_per_step = k}, or a scope in which
// nothing is sent:
//
//   { auto quiet = optimizer.no_sync();  first_half.backward(); }
//   second_half.backward();  optimizer.step();
//
// The optimizer's state shared out over the ranks: {.shard_optimizer_state = true}. Checkpoints and
// broadcast_optimizer_state() know it; before torch::save() call consolidate_state().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/output-archive.h>

#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/gradients/scaled_steps.h"
#include "horon/torch_bindings/tensors/named_tensors.h"
#include "horon/torch_bindings/tensors/sharded_state.h"
#include "horon/torch_bindings/tensors/wrapped_optimizer.h"

namespace horon {

using DistributedOptimizerOptions = GradientReducerOptions;

namespace torch_detail {

class FusedUpdate;
class ShardOwners;
class StateShards;
class StepScaling;

// Throw Error(InvalidArgument) naming the optimizer: it has state that would not be in the archive,
// or it is an LBFGS that has made a step, whose state LibTorch can't write.
void require_no_state(const ::torch::optim::Optimizer& optimizer, const std::type_info& type);
void require_saveable(const ::torch::optim::LBFGS& optimizer);

// Throws Error(InvalidArgument) if the options ask to share out the state of such an optimizer.
void require_unsharded(const DistributedOptimizerOptions& options, const char* optimizer);

// Throws Error(InvalidArgument).
::torch::optim::Optimizer& not_null(::torch::optim::Optimizer* optimizer);

// Does Opt override save()?
template <class Opt>
inline constexpr bool kSavesState =
    !std::is_same_v<decltype(&Opt::save),
                    void (::torch::optim::Optimizer::*)(::torch::serialize::OutputArchive&) const>;

// What is the same for every Opt: when to reduce in a step.
class OptimizerSteps {
 public:
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

  OptimizerSteps(const Groups& groups, const NamedTensors& named,
                 const DistributedOptimizerOptions& options);
  ~OptimizerSteps();

  // Hooks parameters that were added to the groups, and reduces what backward() has not reduced.
  // All backward passes of the step must have run.
  void before_step(const Groups& groups);
  // The same, for a step without a closure. If it throws on this rank alone, no other rank waits in
  // the step.
  void before_plain_step(const Groups& groups);
  // Whether the optimizer's own step calls the closure once, before anything else.
  static bool calls_closure_first(const ::torch::optim::Optimizer& optimizer);
  // Calls the closure, reduces the gradients and the loss that it has computed, and returns the
  // loss of all ranks.
  at::Tensor evaluate(const Groups& groups, const ::torch::optim::Optimizer::LossClosure& closure);
  // The same as a closure, for an optimizer that calls it itself. Throws Error(InvalidArgument) if
  // gradients are to be scaled or clipped.
  ::torch::optim::Optimizer::LossClosure wrap(const ::torch::optim::Optimizer& optimizer,
                                              ::torch::optim::Optimizer::LossClosure closure);
  void synchronize(const Groups& groups,
                   GradientReducer::Passes passes = GradientReducer::Passes::Any);
  // As the options say: makes the step in one pass, skips it, or calls `own_step`, which is the
  // optimizer's own step, and returns its result.
  at::Tensor make_step(::torch::optim::Optimizer& optimizer,
                       const std::function<at::Tensor()>& own_step);
  // Ends a step without moving the parameters.
  void leave_out();
  void before_bucket(std::function<void(const BucketView&)> function);
  void on_submitted(std::function<void(const BucketView&)> function);
  void on_reduced(std::function<void(const BucketView&)> function);
  void set_fused_step(FusedStep wish);
  void set_grad_scale(double scale);
  void set_skip_nonfinite(bool skip);
  double grad_scale() const;
  bool skip_nonfinite() const;
  void note_unscaled(double scale);
  std::optional<double> unscaled_by() const;
  bool step_skipped() const;
  std::optional<double> grad_norm() const;
  std::string fused_step_refusal(const Groups& groups) const;
  // As ShardedState says, of this optimizer.
  std::vector<int> ranks_of_state() const;
  void consolidate_state(::torch::optim::Optimizer& optimizer, std::optional<int> to) const;
  void note_state_loaded() const;
  void keep_own_state(::torch::optim::Optimizer& optimizer) const;
  // Throws Error(InvalidArgument) if this rank lacks state that others have.
  void require_whole_state() const;
  // As ScaledSteps says.
  std::optional<bool> found_by_owners(const std::function<bool()>& found) const;
  GradientReducer& reducer() { return reducer_; }
  const GradientReducer& reducer() const { return reducer_; }

 private:
  bool knows(const Groups& groups) const;
  bool shards_gradients() const;
  void adopt(const Groups& groups);
  void set_bucket_functions();

  std::function<void(const BucketView&)> before_bucket_;  // the program's
  std::function<void(const BucketView&)> on_submitted_;
  std::shared_ptr<ShardOwners> owners_;  // null: the state is not shared out
  GradientReducer reducer_;
  std::vector<const void*> known_;  // the parameters of the groups, in their order
  std::unique_ptr<FusedUpdate> fused_;
  std::unique_ptr<StepScaling> scaling_;
  std::unique_ptr<StateShards> shards_;
  std::optional<double> unscaled_by_;
  int64_t unscaled_round_ = 0;  // the number of rounds at that time
};

// The calls that every DistributedOptimizer has. Self has param_groups().
template <class Self>
class OptimizerCalls : public ScaledSteps {
 public:
  // Reduces what backward() has not reduced: all of it with WaitIn::Step. Collective.
  void synchronize() { steps_->synchronize(self().param_groups()); }

  // Those of GradientReducer, which says what they do.
  void set_weight(double weight) { steps_->reducer().set_weight(weight); }
  void set_backward_passes_per_step(int passes) {
    steps_->reducer().set_backward_passes_per_step(passes);
  }
  const GradientReducerOptions& reducer_options() const { return steps_->reducer().options(); }
  [[nodiscard]] GradientReducer::NoSync no_sync() { return steps_->reducer().no_sync(); }
  void before_bucket(std::function<void(const BucketView&)> function) {
    steps_->before_bucket(std::move(function));
  }
  void after_bucket(std::function<void(const BucketView&)> function) {
    steps_->reducer().after_bucket(std::move(function));
  }

  // From the next step on; the same on all ranks. If only some ranks have fused steps that fusing
  // changes in the last bits, the next round throws Error(Mismatch) that names these ranks. Not
  // checked where only some ranks have a GPU: they round differently anyway.
  void set_fused_step(FusedStep wish) { steps_->set_fused_step(wish); }
  // Why the last step was the optimizer's own, in words that name the parameter; empty if it was
  // made in one pass, or there was none.
  std::string fused_step_refusal() const {
    return steps_->fused_step_refusal(self().param_groups());
  }

  // From the next step on; the same on all ranks. Throws Error(InvalidArgument).
  void set_grad_scale(double scale) override { steps_->set_grad_scale(scale); }
  // The same. With check_finite, by option or knob, NaN and Inf stay an error.
  void set_skip_nonfinite(bool skip) override { steps_->set_skip_nonfinite(skip); }
  double grad_scale() const override { return steps_->grad_scale(); }
  bool skip_nonfinite() const override { return steps_->skip_nonfinite(); }
  // The last step was left out, by skip_nonfinite or a GradScaler: on all ranks.
  bool step_skipped() const override { return steps_->step_skipped(); }
  // The L2 norm of the gradients of the last step, after division by grad_scale and before they
  // were clipped; the same on all ranks. Empty without clip_grad_norm and skip_nonfinite.
  std::optional<double> grad_norm() const { return steps_->grad_norm(); }

  GradientStatistics statistics() const { return steps_->reducer().statistics(); }
  // Seconds that backward(), step() and synchronize() have waited for communication so far.
  double exposed_wait_seconds() const { return statistics().wait_seconds; }

 protected:
  // `groups`: of the optimizer, which has been constructed.
  OptimizerCalls(const OptimizerSteps::Groups& groups, const NamedTensors& named,
                 const GradientReducerOptions& options)
      : steps_(std::make_unique<OptimizerSteps>(groups, named, options)) {}

  // Reduces, then makes the step of the optimizer: in one pass, or by calling step(). (LBFGS and
  // optimizers of the program get the closure.)
  template <class Step>
  at::Tensor step_with(::torch::optim::Optimizer& optimizer,
                       ::torch::optim::Optimizer::LossClosure closure, const Step& step) {
    if (closure && !OptimizerSteps::calls_closure_first(optimizer)) {
      return step(steps_->wrap(optimizer, std::move(closure)));
    }
    at::Tensor loss;
    if (closure) {
      loss = steps_->evaluate(self().param_groups(), closure);
    } else {
      steps_->before_plain_step(self().param_groups());
    }
    at::Tensor of_step = steps_->make_step(optimizer, [&] { return step(nullptr); });
    return closure ? loss : of_step;
  }

  void before_zero_grad(bool set_to_none) {
    if (!set_to_none) steps_->reducer().before_zeroing_in_place();
  }
  const OptimizerSteps& distributed_steps() const { return *steps_; }

 private:
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }

  // For GradScaler and AdaScale, which hold a ScaledSteps.
  void synchronize_for_step() override {
    steps_->synchronize(self().param_groups(), GradientReducer::Passes::All);
  }
  void note_unscaled(double scale) override { steps_->note_unscaled(scale); }
  std::optional<double> unscaled_by() const override { return steps_->unscaled_by(); }
  void leave_out() override { steps_->leave_out(); }
  std::optional<bool> found_by_owners(const std::function<bool()>& found) override {
    return steps_->found_by_owners(found);
  }
  void on_submitted(std::function<void(const BucketView&)> function) override {
    steps_->on_submitted(std::move(function));
  }
  void on_reduced(std::function<void(const BucketView&)> function) override {
    steps_->on_reduced(std::move(function));
  }

  std::unique_ptr<OptimizerSteps> steps_;
};

}  // namespace torch_detail

template <class Opt>
class DistributedOptimizer : public Opt,
                             public torch_detail::WrappedOptimizer,
                             public torch_detail::ShardedState,
                             public torch_detail::OptimizerCalls<DistributedOptimizer<Opt>> {
  static_assert(std::is_base_of_v<::torch::optim::Optimizer, Opt>);

 public:
  // Takes over an optimizer, new or with state. The gradients of its parameters are reduced, and no
  // others; their names come from `named` (a module, named_parameters(), a list of pairs: see
  // named_tensors.h). Parameters without a name there get one by their position, which errors and
  // reports then give. Local. Throws as GradientReducer does.
  explicit DistributedOptimizer(Opt&& optimizer, const NamedTensors& named = {},
                                const DistributedOptimizerOptions& options = {})
      : Opt(std::move(optimizer)),
        torch_detail::OptimizerCalls<DistributedOptimizer>(this->param_groups(), named, options) {
    if constexpr (std::is_base_of_v<::torch::optim::LBFGS, Opt>) {
      torch_detail::require_unsharded(options, "LBFGS, whose state is of all parameters together");
    }
  }

  // Reduces the gradients that are not reduced yet, then Opt::step(), or the same in one pass (see
  // FusedStep). Collective: every rank makes the same steps. Parameters that have come with
  // add_param_group() take part from here on.
  //
  // With a closure: what it computes is reduced when it returns, each time it is called. The loss
  // that it returns becomes that of all ranks (their sum for Sum, else their average), so that
  // optimizers that decide by it, such as LBFGS, decide alike everywhere. Where only some ranks
  // have a GPU, step(closure) of such an optimizer throws Error(InvalidArgument). A rank whose
  // closure returns no loss, as it had no samples, gets that of the others, in the dtype of its
  // first parameter.
  //
  // If the closure throws on some ranks after its gradients were reduced, step(closure) throws an
  // Error with its text on the others too.
  //
  // Throws as GradientReducer::synchronize(Passes::All); with WaitIn::Step Error(InvalidArgument)
  // naming a parameter whose gradient came between synchronize() and step(). Then the parameters
  // have not moved.
  at::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    return this->step_with(*this, std::move(closure), [this](typename Opt::LossClosure reducing) {
      return Opt::step(std::move(reducing));
    });
  }

  void zero_grad(bool set_to_none = true) {
    this->before_zero_grad(set_to_none);
    Opt::zero_grad(set_to_none);
  }

  // For torch::save(); a plain Opt loads it too. Throws Error(InvalidArgument) naming the optimizer
  // where LibTorch would lose or can't write its state: LBFGS after a step; an optimizer of your
  // own that has state and no save(); state of which other ranks have a part.
  void save(::torch::serialize::OutputArchive& archive) const override {
    if constexpr (!torch_detail::kSavesState<Opt>) {
      torch_detail::require_no_state(*this, typeid(Opt));
    }
    if constexpr (std::is_base_of_v<::torch::optim::LBFGS, Opt>) {
      torch_detail::require_saveable(*this);
    }
    this->distributed_steps().require_whole_state();
    Opt::save(archive);
  }
  void load(::torch::serialize::InputArchive& archive) override {
    Opt::load(archive);
    note_state_loaded();
  }

  // With shard_optimizer_state: gives the state of all parameters to one rank, by default the
  // lowest of the process set, which has it until its next step. Collective over the set. Throws
  // Error(InvalidArgument) for a rank that is not in it, or where another one alone has loaded
  // state; Error(RankLeft) once a rank has joined; what save() and load() of the optimizer throw,
  // on all ranks.
  void consolidate_state(std::optional<int> to = {}) override {
    this->distributed_steps().consolidate_state(*this, to);
  }

  const std::type_info& wrapped_type() const override {
    return typeid(*this) == typeid(DistributedOptimizer) ? typeid(Opt) : typeid(*this);
  }
  std::vector<int> ranks_of_steps() const override {
    return this->reducer_options().process_set.ranks();
  }

 private:
  std::vector<int> ranks_of_state() const override {
    return this->distributed_steps().ranks_of_state();
  }
  void note_state_loaded() override { this->distributed_steps().note_state_loaded(); }
  void keep_own_state() override { this->distributed_steps().keep_own_state(*this); }
};

// For an optimizer that the program holds as the base class. This class is no optimizer itself, but
// works on the given one. Schedulers, save and load go on using the given one.
template <>
class DistributedOptimizer<::torch::optim::Optimizer>
    : public torch_detail::OptimizerCalls<DistributedOptimizer<::torch::optim::Optimizer>> {
  using Optimizer = ::torch::optim::Optimizer;

 public:
  // The optimizer stays the program's and outlives this. Throws as above.
  explicit DistributedOptimizer(Optimizer& optimizer, const NamedTensors& named = {},
                                const DistributedOptimizerOptions& options = {})
      : OptimizerCalls(optimizer.param_groups(), named, options), optimizer_(&optimizer) {
    torch_detail::require_unsharded(options, "an optimizer that the program holds itself");
  }
  // Owns the optimizer, which is not null.
  explicit DistributedOptimizer(std::unique_ptr<Optimizer> optimizer,
                                const NamedTensors& named = {},
                                const DistributedOptimizerOptions& options = {})
      : DistributedOptimizer(torch_detail::not_null(optimizer.get()), named, options) {
    owned_ = std::move(optimizer);
  }

  // As above.
  at::Tensor step(Optimizer::LossClosure closure = nullptr) {
    return step_with(*optimizer_, std::move(closure), [this](Optimizer::LossClosure reducing) {
      return optimizer_->step(std::move(reducing));
    });
  }
  void zero_grad(bool set_to_none = true) {
    before_zero_grad(set_to_none);
    optimizer_->zero_grad(set_to_none);
  }

  Optimizer& optimizer() { return *optimizer_; }
  const Optimizer& optimizer() const { return *optimizer_; }
  const torch_detail::OptimizerSteps::Groups& param_groups() const {
    return static_cast<const Optimizer*>(optimizer_)->param_groups();
  }

 private:
  Optimizer* optimizer_;
  std::unique_ptr<Optimizer> owned_;
};

DistributedOptimizer(::torch::optim::Optimizer&, const NamedTensors& = {},
                     const DistributedOptimizerOptions& = {})
    ->DistributedOptimizer<::torch::optim::Optimizer>;
template <class Held>
DistributedOptimizer(std::unique_ptr<Held>, const NamedTensors& = {},
                     const DistributedOptimizerOptions& = {})
    -> DistributedOptimizer<::torch::optim::Optimizer>;

}  // namespace horon
