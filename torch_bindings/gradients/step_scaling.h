// What DistributedOptimizer::step() does to the reduced gradients before the optimizer uses them:
// it divides them by the loss scale, leaves the step out if they are not finite, and clips them.
//
// All of it comes to one factor, which the fused step applies in its own pass. The reduced
// gradients are the same on all ranks to the bit, and so is what follows from them: the ranks need
// not tell each other. With shard_gradients each rank has only some of them, and the ranks add up
// their sums.
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include <torch/optim/optimizer.h>

#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon::torch_detail {

// Throws Error(InvalidArgument).
void check_grad_scale(double scale);

class StepScaling {
 public:
  using Groups = std::vector<::torch::optim::OptimizerParamGroup>;

  // The options have been checked (settings.h).
  explicit StepScaling(const GradientReducerOptions& options);

  // Each rank has only some gradients: `sum` adds a tensor up over the ranks, on any device, and
  // decide() is collective where it needs the norm.
  void add_up_over_owners(std::function<at::Tensor(const at::Tensor&)> sum) {
    sum_of_owners_ = std::move(sum);
  }
  // Throws Error(InvalidArgument).
  void set_grad_scale(double scale);
  void set_skip_nonfinite(bool skip) { skip_nonfinite_ = skip; }
  double grad_scale() const { return scale_; }
  bool skip_nonfinite() const { return skip_nonfinite_; }
  // False: gradients stay as they are, and no step is left out.
  bool is_needed() const { return scale_ != 1 || needs_norm() || largest_.has_value(); }
  bool needs_norm() const { return skip_nonfinite_ || clip_.has_value(); }

  // Measures a gradient ahead of decide(), until which it does not change. It may be undefined.
  void measure(const at::Tensor& parameter);
  // Gradients that were measured have changed since.
  void forget() { measured_.clear(); }

  // Measures the other gradients of a step and decides about it; then nothing is measured any more.
  void decide(const Groups& groups);
  // Instead of decide(): there is no step.
  void leave_out();
  // After either: this step is not to be made.
  bool skips() const { return skips_; }
  // What gradients are still to be multiplied by.
  double factor() const { return factor_; }
  // The L2 norm of all gradients divided by the loss scale, if it was computed. The host waits for
  // it where the gradients are on a GPU.
  std::optional<double> norm() const;
  // factor() is not all: there is a factor on a GPU, which the host does not know, or elements are
  // to be clipped. Then apply() must come before the step.
  bool needs_apply() const { return factor_on_device_.defined() || clips_values_; }
  // A parameter stands in the groups more than once, so that a pass over the groups would multiply
  // its gradient more than once.
  bool repeats() const { return repeats_; }
  // Multiplies each .grad by factor(), which is 1 from then on, and clips its elements.
  void apply(const Groups& groups);

 private:
  void find_repeated(const Groups& groups);
  void decide_on_host(const Groups& groups);
  void decide_on_device(const Groups& groups);
  void refuse_complex(const Groups& groups) const;
  bool takes_part(const at::Tensor& parameter) const;
  bool is_on_host(const Groups& groups) const;
  bool any_not_finite(const Groups& groups) const;
  double squares_of(const at::Tensor& parameter) const;
  // Calls `work` for each parameter with a gradient, once, in the order of the groups.
  template <class Work>
  void for_each_parameter(const Groups& groups, const Work& work) const;

  std::function<at::Tensor(const at::Tensor&)> sum_of_owners_;
  double scale_;
  bool skip_nonfinite_;
  std::optional<double> clip_;
  std::optional<double> largest_;  // element

  bool skips_ = false;
  bool clips_values_ = false;  // apply() is to do it
  double factor_ = 1;
  std::optional<double> norm_;
  at::Tensor norm_on_device_;                         // in the place of norm_
  at::Tensor factor_on_device_;                       // beside factor_, or undefined
  std::unordered_map<const void*, double> measured_;  // sums of squares

  // Parameters in the order of the groups, and which of them have stood there before.
  std::vector<const void*> listed_;
  std::vector<bool> is_repeated_;
  bool repeats_ = false;
};

}  // namespace horon::torch_detail
