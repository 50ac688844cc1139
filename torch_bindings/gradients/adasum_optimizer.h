// Any optimizer of LibTorch whose steps, not gradients, are combined over the ranks, by Adasum:
// the move of each parameter (its change in the step) is reduced with ReduceOp::Adasum, and all
// ranks move by the result.
//
//   horon::AdasumOptimizer optimizer(
//       torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)));
//   ...
//   optimizer.zero_grad();  loss.backward();  optimizer.step();
//
// The learning rate is that of one rank: it is not scaled by the number of ranks. Each rank's
// optimizer sees its own gradients, so that its state differs between the ranks. Several backward
// passes before a step add up. With an amp::GradScaler each rank has a scale of its own, and a rank
// whose gradients are not finite moves by the combined moves of the others.
//
// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021,
// section 3.4; Horovod's DistributedOptimizer(op=Adasum) does the same.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "horon/core/base/entry_spec.h"
#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/tensors/collective_step.h"
#include "horon/torch_bindings/tensors/wrapped_optimizer.h"

namespace horon {

// The same on all ranks of the process set.
struct AdasumOptimizerOptions {
  // What its collectives are called on all ranks.
  std::string name = "adasum";
  // The ranks that combine their steps. On the others a step is the optimizer's own.
  ProcessSet process_set = {};
  // Of float32 moves: BFloat16, or Float16, which makes 0 of those below 3e-8.
  Compression compression = Compression::None;
};

namespace torch_detail {

// One thread, as the optimizer.
class AdasumSteps {
 public:
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

  // Throws Error(InvalidArgument) for a parameter or an option that Adasum does not support; so
  // does begin().
  AdasumSteps(AdasumOptimizerOptions options, const Groups& groups);

  // Before the optimizer's own step: remembers where the parameters are.
  void begin(const Groups& groups);
  // After the optimizer's own step: combines the moves. Collective. Throws as allreduce_(); then
  // the parameters are where they were before.
  void end();
  // Instead of end(), in the handler of what the optimizer's own step has thrown: puts the
  // parameters back on all ranks, and end() throws on the others.
  void undo();
  std::vector<int> ranks() const { return options_.process_set.ranks(); }

 private:
  struct Moved {
    at::Tensor parameter;
    at::Tensor start;
  };

  static void put_back(const std::vector<Moved>& moved);
  std::string name_of(size_t number) const;
  // Reduces what the parameter has moved by.
  Handle start(const Moved& moved, size_t number) const;

  const AdasumOptimizerOptions options_;
  std::vector<Moved> moved_;
};

}  // namespace torch_detail

template <class Opt>
class AdasumOptimizer : public Opt,
                        public torch_detail::WrappedOptimizer,
                        public torch_detail::CollectiveStep {
  static_assert(std::is_base_of_v<::torch::optim::Optimizer, Opt>);

 public:
  // Takes over an optimizer, new or with state. Throws Error(InvalidArgument) for complex
  // parameters and Compression::Int8.
  explicit AdasumOptimizer(Opt&& optimizer, const AdasumOptimizerOptions& options = {})
      : Opt(std::move(optimizer)), steps_(options, this->param_groups()) {}

  // Opt::step() on this rank, with the closure and what it returns; then the moves of all ranks are
  // combined. Collective. If it throws on one rank it does on all, and none has moved.
  at::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    steps_.begin(this->param_groups());
    at::Tensor loss;
    try {
      loss = Opt::step(std::move(closure));
    } catch (...) {
      steps_.undo();
      throw;
    }
    steps_.end();
    return loss;
  }

  void move_by_others() override {
    steps_.begin(this->param_groups());
    steps_.end();
  }

  const std::type_info& wrapped_type() const override {
    return typeid(*this) == typeid(AdasumOptimizer) ? typeid(Opt) : typeid(*this);
  }
  std::vector<int> ranks_of_steps() const override { return steps_.ranks(); }

 private:
  torch_detail::AdasumSteps steps_;
};

}  // namespace horon
