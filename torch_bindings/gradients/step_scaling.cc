#include "horon/torch_bindings/gradients/step_scaling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/gradients/gradient_norm.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided ? gradient : gradient.coalesce().values();
}

// The sum of squares of a rank without gradients, on the device of the parameters.
at::Tensor no_squares(const StepScaling::Groups& groups) {
  at::Tensor none = at::zeros({}, at::kDouble);
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.requires_grad()) return none.to(parameter.device());
    }
  }
  return none;
}

}  // namespace

void check_grad_scale(double scale) {
  if (std::isfinite(scale) && scale > 0) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("grad_scale is ", scale, "; give a finite number above 0"));
}

StepScaling::StepScaling(const GradientReducerOptions& options)
    : scale_(options.grad_scale),
      skip_nonfinite_(options.skip_nonfinite),
      clip_(options.clip_grad_norm),
      largest_(options.clip_grad_value) {}

void StepScaling::set_grad_scale(double scale) {
  check_grad_scale(scale);
  scale_ = scale;
}

void StepScaling::find_repeated(const Groups& groups) {
  size_t index = 0;
  bool same = true;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const void* const identity = parameter.unsafeGetTensorImpl();
      same = same && index < listed_.size() && listed_[index] == identity;
      ++index;
    }
  }
  if (same && index == listed_.size()) return;
  listed_.clear();
  is_repeated_.clear();
  repeats_ = false;
  std::unordered_set<const void*> seen;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      listed_.push_back(parameter.unsafeGetTensorImpl());
      is_repeated_.push_back(!seen.insert(listed_.back()).second);
      repeats_ = repeats_ || is_repeated_.back();
    }
  }
}

void StepScaling::measure(const at::Tensor& parameter) {
  if (!parameter.grad().defined()) return;
  if (!parameter.is_cpu()) return;  // on a GPU all norms are taken together
  const PlainMode plain;
  measured_[parameter.unsafeGetTensorImpl()] = sum_of_squares(parameter.grad());
}

double StepScaling::squares_of(const at::Tensor& parameter) const {
  const auto found = measured_.find(parameter.unsafeGetTensorImpl());
  return found != measured_.end() ? found->second : sum_of_squares(parameter.grad());
}

template <class Work>
void StepScaling::for_each_parameter(const Groups& groups, const Work& work) const {
  size_t index = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (!is_repeated_[index++] && parameter.grad().defined()) work(parameter);
    }
  }
}

void StepScaling::leave_out() {
  skips_ = true;
  norm_.reset();
  norm_on_device_.reset();
}

void StepScaling::decide(const Groups& groups) {
  skips_ = false;
  clips_values_ = largest_.has_value();
  factor_ = 1;
  norm_.reset();
  norm_on_device_.reset();
  factor_on_device_.reset();
  if (!is_needed()) return;
  find_repeated(groups);
  if (clips_values_) refuse_complex(groups);
  factor_ = 1 / scale_;
  if (!needs_norm()) return;
  const PlainMode plain;
  is_on_host(groups) ? decide_on_host(groups) : decide_on_device(groups);
}

// Whether it may have a gradient here or on another rank: all ranks decide alike, also those
// without one.
bool StepScaling::takes_part(const at::Tensor& parameter) const {
  return sum_of_owners_ ? parameter.requires_grad() : parameter.grad().defined();
}

bool StepScaling::is_on_host(const Groups& groups) const {
  bool on_host = true;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      on_host = on_host && (parameter.is_cpu() || !takes_part(parameter));
    }
  }
  return on_host;
}

void StepScaling::refuse_complex(const Groups& groups) const {
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.is_complex() || !takes_part(parameter)) continue;
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("clip_grad_value: the parameter of shape ",
                               core::shape_text(parameter.sizes()),
                               " is complex, and complex numbers have no order; use ",
                               "clip_grad_norm, or give it an optimizer of its own"));
    }
  }
}

bool StepScaling::any_not_finite(const Groups& groups) const {
  bool found = false;
  for_each_parameter(groups, [&](const at::Tensor& parameter) {
    found = found || !all_finite(values_of(parameter.grad()));
  });
  if (!sum_of_owners_) return found;
  return sum_of_owners_(at::scalar_tensor(found ? 1 : 0, at::kDouble)).item<double>() > 0;
}

// The host waits only where it must know whether there is a step.
void StepScaling::decide_on_device(const Groups& groups) {
  std::vector<at::Tensor> gradients;
  for_each_parameter(groups, [&](const at::Tensor& parameter) {
    gradients.push_back(values_of(parameter.grad()));
  });
  if (!sum_of_owners_) {
    norm_on_device_ = norm_on_device(gradients).div_(scale_);
  } else {
    const at::Tensor own =
        gradients.empty() ? no_squares(groups) : norm_on_device(gradients).square_();
    norm_on_device_ = sum_of_owners_(own).sqrt_().div_(scale_);
  }
  if (skip_nonfinite_ && !std::isfinite(norm_on_device_.item<double>())) {
    skips_ = any_not_finite(groups);  // of finite numbers a square may overflow
    if (skips_) return;
  }
  if (!clip_ || std::isinf(*clip_)) return;
  factor_on_device_ = norm_on_device_.add(1e-6).reciprocal_().mul_(*clip_).clamp_max_(1);
}

std::optional<double> StepScaling::norm() const {
  if (norm_on_device_.defined()) return norm_on_device_.item<double>();
  return norm_;
}

void StepScaling::decide_on_host(const Groups& groups) {
  std::vector<double> parts;
  for_each_parameter(groups,
                     [&](const at::Tensor& parameter) { parts.push_back(squares_of(parameter)); });
  // The ranks may have their parameters in groups of another order. So the parts are sorted before
  // they are summed: else the ranks would clip by factors that differ in the last bit. (NaN can't
  // be sorted.)
  if (std::none_of(parts.begin(), parts.end(), [](double part) { return std::isnan(part); })) {
    std::sort(parts.begin(), parts.end());
  }
  double squares = std::accumulate(parts.begin(), parts.end(), 0.0);
  if (sum_of_owners_) {
    squares = sum_of_owners_(at::scalar_tensor(squares, at::kDouble)).item<double>();
  }
  forget();
  norm_ = std::sqrt(squares) / scale_;
  if (skip_nonfinite_ && !std::isfinite(squares)) {
    skips_ = any_not_finite(groups);  // of finite numbers in float64 a square may overflow
    if (skips_) return;
  }
  if (!clip_ || std::isinf(*clip_)) return;
  // As clip_grad_norm_() does. Not std::min(): NaN stays NaN.
  const double share = *clip_ / (*norm_ + 1e-6);
  if (!(share > 1)) factor_ *= share;
}

void StepScaling::apply(const Groups& groups) {
  const double factor = std::exchange(factor_, 1);
  const at::Tensor on_device = std::exchange(factor_on_device_, {});
  const bool clips = std::exchange(clips_values_, false);
  if (factor == 1 && !on_device.defined() && !clips) return;
  const PlainMode plain;
  // As clip_grad_norm_(), which writes to grad().data(): versions stay, and a graph of the gradient
  // (create_graph) too.
  const at::AutoDispatchBelowADInplaceOrView below;
  for_each_parameter(groups, [&](const at::Tensor& parameter) {
    const at::Tensor& grad = parameter.grad();
    // An element of a sparse gradient may be the sum of several values. The tensor stays, by which
    // the reducer knows its result.
    const bool is_summed = grad.layout() == at::kStrided || grad.is_coalesced();
    if (clips && !is_summed) grad.copy_(grad.coalesce());
    const at::Tensor values = grad.layout() == at::kStrided ? grad : grad._values();
    if (factor != 1) values.mul_(factor);
    if (on_device.defined()) values.mul_(on_device);
    if (clips) values.clamp_(-*largest_, *largest_);
  });
}

}  // namespace horon::torch_detail
