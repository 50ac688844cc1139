// AdaScale SGD (Johnson, Agrawal, Gu and Guestrin 2020, "AdaScale SGD: A User-Friendly Algorithm
// for Distributed Training"): a learning rate and a length of training that were chosen for one
// batch a step are used for the batches of all ranks. The gradients tell how many of those steps
// one on S batches is worth.
//
//   horon::AdaScale ada_scale(optimizer, horon::lr::cosine(total_steps));   // of one batch a step
//   while (ada_scale.position() < total_steps) {
//     ...
//     optimizer.zero_grad();
//     loss.backward();
//     ada_scale.step();            // in the place of optimizer.step()
//   }
//
// With the variance v of a batch's gradient and the squared norm s of its mean, a step on S batches
// is worth gain = (v + s) / (v / S + s) steps on one: S where gradients are noise, 1 where they are
// alike. It is made with gain times the schedule's learning rate, and moves the schedule on by
// gain. So a schedule is written for one batch, and holds for any number of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/gradients/distributed_optimizer.h"
#include "horon/torch_bindings/lr/lr_scheduler.h"

namespace horon {

class ReduceLrOnPlateau;
namespace amp {
class GradScaler;
}

struct AdaScaleOptions {
  std::string name = {};  // of its collective; empty: "ada_scale.noname.N"
  // Batches of each rank in one step, above 0; empty: the optimizer's backward_passes_per_step. A
  // program that adds up the gradients of k batches in no_sync() says k here, and divides its loss
  // by k, which nothing else does.
  std::optional<int> batches = {};
  // As in LrSchedulerOptions; a step is one on a single batch.
  int64_t steps_per_unit = 1;
  // v and s are running means, which keep this share of what they were: from 0 to below 1. Empty:
  // the paper's 1 - S / 1000, and not below 0.
  std::optional<double> smoothing = {};
};

// For optimizers whose op is Average or Sum. Needs the gradients of two ranks; on one rank alone
// the gain is 1. Meant for SGD, with or without momentum, as in the paper; other optimizers are not
// refused. The learning rates before the scaling are those that the groups have when this is made:
// do not scale them (scale_lr). Where gradients are sums (Sum over ranks; passes without
// average_aggregated_gradients) the learning rates are divided by what the gradients have grown by.
// That divides weight decay too, and a momentum holds sums of more ranks for a while once some have
// joined: use means there.
//
// Costs a pass over each gradient before it is reduced and after, and one allreduce of 32 bytes in
// a step; the host waits for a GPU twice. All ranks compute the same gain, from the same numbers.
// Gradients are measured as they are reduced: behind the program's before_bucket(), and before a
// program clips them between backward() and step(). Buckets are not tuned meanwhile
// (HORON_AUTOTUNE).
//
// With an amp::GradScaler: scaler.step(ada_scale) in the place of step(), behind
// scaler.unscale_(optimizer) or without it. A program that scales losses by itself uses the
// optimizer's set_grad_scale(), whose scale is taken out. A program that divides the gradients
// itself has its scale in variance() and squared_mean(): then the scale must stay the same.
//
// A step in which the gradients can't be told apart (a gradient came after its bucket; more than
// one reduction in the step; NaN) has the gain of the steps before it. After 20 such steps in a row
// the lowest rank logs a warning.
//
// Refused meanwhile: set_weight() of the optimizer, as the ranks' gradients count alike (a weight
// that is set already still counts in the first step, which is measured wrongly then), and
// step() of an LrScheduler of it, whose learning rates would be replaced in each step. A
// ReduceLrOnPlateau is given the AdaScale.
class AdaScale {
 public:
  // Constructed in the same order on all ranks, as a reducer is. The optimizer outlives it, and has
  // one AdaScale at a time. Throws Error(InvalidArgument) naming an option, or if the optimizer has
  // one already, and as LrScheduler does.
  template <class Opt>
  AdaScale(DistributedOptimizer<Opt>& optimizer, lr::Schedule schedule,
           AdaScaleOptions options = {})
      : AdaScale(parts_of(optimizer), std::move(schedule), std::move(options)) {}
  ~AdaScale();
  AdaScale(const AdaScale&) = delete;
  AdaScale& operator=(const AdaScale&) = delete;

  // Reduces what backward() has not, sets the learning rates and makes the optimizer's step.
  // Collective. Throws as these, and Error(InvalidArgument) for gradients that stay sparse, or that
  // a GradScaler's unscale_() has divided: only the GradScaler knows whether they are finite. A
  // step that the optimizer leaves out (loss scaling) does not count.
  void step();

  // Of the last step: from 1 to S.
  double gain() const { return state_.gain; }
  // S: batches of all ranks in one step.
  double scale() const;
  // Steps on one batch that the training has been worth so far: the sum of the gains.
  double position() const { return state_.position; }
  // Steps that were made.
  int64_t steps() const { return scheduler_->steps(); }
  // As the last step had them.
  std::vector<double> learning_rates() const { return scheduler_->learning_rates(); }
  // The running means: of the variance of one batch's gradient, summed over all elements, and of
  // the squared norm of its mean. Of gradients as the optimizer sees them, but averaged.
  double variance() const { return state_.variance; }
  double squared_mean() const { return state_.squared_mean; }

  // For torch::save(), torch::load() and Checkpoints::add(). Also on another number of ranks. As
  // those of LrScheduler.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  // What it uses of a DistributedOptimizer, of whatever type.
  struct Parts {
    ::torch::optim::Optimizer* optimizer;
    torch_detail::ScaledSteps* scaling;
    std::function<void()> step;
    std::function<GradientStatistics()> statistics;
    std::function<const GradientReducerOptions&()> gradients;  // as they are now
  };
  struct State {
    double position = 0;
    double gain = 1;
    double variance = 0;
    double squared_mean = 0;
    double weight = 0;  // of all that the running means hold
    // Of this job, so they are not saved.
    double ranks = 1;        // that had a part in the last step
    int64_t unmeasured = 0;  // steps in a row
  };
  // Numbers of one step that travel, added up over the ranks.
  struct Sums {
    double ranks = 0;
    double unusable = 0;  // ranks on which it can't be measured
    double local = 0;     // squared norms of the ranks' own gradients
    double reduced = 0;   // of the reduced ones
  };

  template <class Opt>
  static Parts parts_of(DistributedOptimizer<Opt>& held) {
    Parts parts;
    if constexpr (std::is_same_v<Opt, ::torch::optim::Optimizer>) {
      parts.optimizer = &held.optimizer();
    } else {
      parts.optimizer = &held;
    }
    parts.scaling = &held;
    parts.step = [&held] { held.step(); };
    parts.statistics = [&held] { return held.statistics(); };
    parts.gradients = [&held]() -> const auto& { return held.reducer_options(); };
    return parts;
  }
  AdaScale(Parts parts, lr::Schedule schedule, AdaScaleOptions options);

  friend class amp::GradScaler;
  friend class ReduceLrOnPlateau;
  void make_step();
  // Forgets what was measured in a step that the GradScaler has left out.
  void forget_round();

  double batches() const;
  Sums own_sums();
  Sums sums_of_ranks(const Sums& own) const;
  void learn(const Sums& sums);
  void warn_of_unmeasured_steps() const;

  const Parts parts_;
  const std::shared_ptr<void> only_one_;  // until it ends, the optimizer has no other
  const lr::Schedule schedule_;
  AdaScaleOptions options_;
  bool alone_;  // there is nobody whose gradients could differ
  State state_;
  std::optional<LrScheduler> scheduler_;
  // Of the last round: squared norms of this rank's own gradients, by bucket; float64 scalars on
  // the device of the gradients.
  std::map<int64_t, at::Tensor> of_buckets_;
  std::map<int64_t, at::Tensor> of_reduced_;  // the same of the reduced ones
  GradientStatistics seen_;
};

namespace torch_detail {
// Whether an AdaScale sets this optimizer's learning rates now.
bool has_ada_scale(const ::torch::optim::Optimizer& optimizer);
}  // namespace torch_detail

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const AdaScale& ada_scale);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             AdaScale& ada_scale);

}  // namespace horon
