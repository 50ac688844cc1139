// Any optimizer of LibTorch, or one of your own, whose gradients are reduced over all ranks.
//
//   horon::DistributedOptimizer optimizer(
//       torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
//       *model, {.op = horon::ReduceOp::Average});
//   ...
//   optimizer.zero_grad();  loss.backward();  optimizer.step();
//
// DistributedOptimizer<Opt> is an Opt: schedulers, torch::save and functions that take
// torch::optim::Optimizer& work with it. Reduction begins inside backward(); step() waits for the
// rest. gradient_reducer.h says what that asks of a program, and what it does not.
//
// To clip gradients, or to look at them, wait first; step() then does not wait again:
//
//   loss.backward();  optimizer.synchronize();
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);  optimizer.step();
//
// Several backward passes for one step: {.backward_passes_per_step = k}, or a scope in which
// nothing is sent:
//
//   { auto quiet = optimizer.no_sync();  first_half.backward(); }
//   second_half.backward();  optimizer.step();
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/output-archive.h>

#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/tensors/named_tensors.h"
#include "horon/torch_bindings/tensors/wrapped_optimizer.h"

namespace horon {

using DistributedOptimizerOptions = GradientReducerOptions;

namespace torch_detail {

// Throw Error(InvalidArgument) naming the optimizer: there is something that would not be in the
// archive, or LBFGS has made a step, which LibTorch can't write.
void require_no_state(const ::torch::optim::Optimizer& optimizer, const std::type_info& type);
void require_saveable(const ::torch::optim::LBFGS& optimizer);

// Has it a save() of its own?
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

  // Hooks parameters that were added to the groups, and reduces unless synchronize() has; then all
  // backward passes of the step must have run.
  void before_step(const Groups& groups);
  // The closure, followed by the reduction of what it has computed.
  ::torch::optim::Optimizer::LossClosure wrap(const Groups& groups,
                                              ::torch::optim::Optimizer::LossClosure closure);
  void synchronize(const Groups& groups,
                   GradientReducer::Passes passes = GradientReducer::Passes::Any);
  GradientReducer& reducer() { return reducer_; }
  const GradientReducer& reducer() const { return reducer_; }

 private:
  void adopt(const Groups& groups);
  void finish_gradients(const Groups& groups);

  GradientReducer reducer_;
  size_t known_parameters_;
};

}  // namespace torch_detail

template <class Opt>
class DistributedOptimizer : public Opt, public torch_detail::WrappedOptimizer {
  static_assert(std::is_base_of_v<::torch::optim::Optimizer, Opt>);

 public:
  // Takes over an optimizer, new or with state. Its parameters are reduced, and no others; their
  // names come from `named` (a module, named_parameters(), a list of pairs: see named_tensors.h).
  // Parameters without a name there get one by their position. Local. Throws as GradientReducer
  // does.
  DistributedOptimizer(Opt&& optimizer, const NamedTensors& named,
                       const DistributedOptimizerOptions& options = {})
      : Opt(std::move(optimizer)),
        steps_(
            std::make_unique<torch_detail::OptimizerSteps>(this->param_groups(), named, options)) {}

  // Reduces the gradients (unless synchronize() has, since the last step), then Opt::step().
  // Collective: every rank makes the same steps. Parameters that have come with add_param_group()
  // take part from here on.
  //
  // With a closure: what it computes is reduced when it returns, each time it is called. The loss
  // that it returns becomes that of all ranks (their sum for Sum, else their average), so that
  // optimizers that decide by it, such as LBFGS, decide alike everywhere.
  //
  // Throws as GradientReducer::synchronize(Passes::All); Error(InvalidArgument) naming a parameter
  // whose gradient came between synchronize() and step(). Then the parameters have not moved.
  at::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    if (closure) {
      closure = steps_->wrap(this->param_groups(), std::move(closure));
    } else {
      steps_->before_step(this->param_groups());
    }
    return Opt::step(std::move(closure));
  }

  // Waits until every .grad holds the reduced gradient. Collective.
  void synchronize() { steps_->synchronize(this->param_groups()); }

  void zero_grad(bool set_to_none = true) {
    if (!set_to_none) steps_->reducer().before_zeroing_in_place();
    Opt::zero_grad(set_to_none);
  }

  // Those of GradientReducer, which says what they do.
  void set_weight(double weight) { steps_->reducer().set_weight(weight); }
  [[nodiscard]] GradientReducer::NoSync no_sync() { return steps_->reducer().no_sync(); }
  void before_bucket(std::function<void(const BucketView&)> function) {
    steps_->reducer().before_bucket(std::move(function));
  }
  void after_bucket(std::function<void(const BucketView&)> function) {
    steps_->reducer().after_bucket(std::move(function));
  }

  // For torch::save(); a plain Opt loads it too. Throws Error(InvalidArgument) naming the optimizer
  // where LibTorch would lose or can't write its state: LBFGS after a step; an optimizer of your
  // own that has state and no save().
  void save(::torch::serialize::OutputArchive& archive) const override {
    if constexpr (!torch_detail::kSavesState<Opt>) {
      torch_detail::require_no_state(*this, typeid(Opt));
    }
    if constexpr (std::is_base_of_v<::torch::optim::LBFGS, Opt>) {
      torch_detail::require_saveable(*this);
    }
    Opt::save(archive);
  }

  const std::type_info& wrapped_type() const override {
    return typeid(*this) == typeid(DistributedOptimizer) ? typeid(Opt) : typeid(*this);
  }

  GradientStatistics statistics() const { return steps_->reducer().statistics(); }
  // Seconds that step() and synchronize() have waited for communication so far.
  double exposed_wait_seconds() const { return statistics().wait_seconds; }

 private:
  std::unique_ptr<torch_detail::OptimizerSteps> steps_;
};

}  // namespace horon
