#include "horon/torch_bindings/gradients/slot.h"

#include <limits>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

at::Tensor copy_like(const at::Tensor& view, const at::Tensor& values) {
  at::Tensor copy = at::empty_strided(view.sizes(), view.strides(), view.options());
  assign_values(copy, values);
  return copy;
}

}  // namespace

double neutral_element(ReduceOp op) {
  switch (op) {
    case ReduceOp::Min:
      return std::numeric_limits<double>::infinity();
    case ReduceOp::Max:
      return -std::numeric_limits<double>::infinity();
    case ReduceOp::Product:
      return 1;
    default:
      return 0;
  }
}

GradientSlot::GradientSlot(std::string name, at::Tensor parameter, const GradientSettings& settings)
    : parameter_(std::move(parameter)),
      settings_(settings),
      name_(std::move(name)),
      kept_(at::Tensor().getIntrusivePtr()),
      older_sparse_(at::Tensor().getIntrusivePtr()) {}

void GradientSlot::refuse(const std::string& why) const {
  throw Error(ErrorCode::InvalidArgument, core::concat("gradient of \"", name_, "\": ", why));
}

void GradientSlot::refuse_second_thread() const {
  refuse("two threads run backward() on it at a time");
}

bool GradientSlot::is_kept(const at::Tensor& tensor) const {
  if (!tensor.defined() || kept_.expired()) return false;
  return kept_._unsafe_get_target() == tensor.unsafeGetTensorImpl() &&
         kept_version_ == tensor._version();
}

void GradientSlot::keep(const at::Tensor& tensor) {
  beside_ = true;
  kept_ = decltype(kept_)(tensor.getIntrusivePtr());
  kept_version_ = tensor._version();
}

void GradientSlot::move_to(const GradientBucket& bucket, size_t part) {
  HORON_CHECK(state_ == State::Idle, "a bucket was replaced in the middle of a step");
  const bool moves = bucket_ != nullptr && holds(grad());
  const at::Tensor before = moves ? grad() : at::Tensor();
  bucket_ = &bucket;
  part_ = bucket.part(part);
  part_number_ = part;
  view_ = bucket.make_view(part);
  neutral_ = false;
  if (!moves) return;
  grad().reset();
  if (before.sizes() != view_.sizes()) return;  // values of another shape mean nothing any more
  assign_values(view_, before);
  grad() = view_;
}

void GradientSlot::check_shape(const at::Tensor& gradient) const {
  if (gradient.sizes() == view_.sizes()) return;
  refuse(core::concat("it has shape ", gradient.sizes(), ", the parameter ", view_.sizes()));
}

// .grad holds a value from an earlier step (no zero_grad(), or zero_grad(false)): the new gradients
// are added to it, on all ranks. Every rank holds the same old value. Average, Min and Max let it
// pass as it is; in a Sum each rank brings its share of it, and a result that is divided needs
// more.
void GradientSlot::use_older_value() {
  if (std::exchange(older_.present, true)) return;
  const PlainMode plain;
  beside_ = true;
  neutral_ = false;
  if (settings_.older_share != 1) {
    view_.mul_(settings_.older_share);
    older_.scaled = true;
  } else if (settings_.op == ReduceOp::Product && view_.count_nonzero().item<int64_t>() != 0) {
    older_.present = false;
    refuse("Product can't go on from the value of an earlier step; call zero_grad() first");
  }
}

void GradientSlot::forget_bucket_value() {
  flight_.discarded = true;
  flight_.represented = false;
  flight_.parked = false;
  late_.reset();
}

void GradientSlot::before_accumulate(std::optional<double> weight) {
  at::Tensor& current = grad();
  if (state_ != State::Submitted && !beside_ && !current.defined()) return;  // most of them
  if (!fired_ && is_older_sparse(current)) {
    beside_ = true;
    sparse_.older_aside = std::exchange(current, at::Tensor());
    flight_.parked = true;
    return;
  }
  // The program has dropped them.
  if (!flight_.parked && !current.defined()) sparse_.older_aside.reset();
  if (state_ == State::Submitted) {
    if (holds(current)) {
      current.reset();
      flight_.parked = true;
    } else if (flight_.represented && !(flight_.parked && !current.defined())) {
      forget_bucket_value();  // dropped or replaced by the program, or about to grow (create_graph)
    }
  } else if (state_ == State::Idle && holds(current)) {
    use_older_value();
    if (weight == 0.0) {
      const PlainMode plain;
      older_.values = view_.clone();  // this rank's gradients count 0
    }
    version_ = current._version();
  }
}

GradientSlot::Arrival GradientSlot::after_accumulate(bool narrow) {
  at::Tensor& current = grad();
  if (beside_ && !flight_.represented && sparse_.older_aside.defined() &&
      std::exchange(flight_.parked, false) && !current.defined()) {
    current = std::exchange(sparse_.older_aside, at::Tensor());
    return Arrival::Nothing;
  }
  if (!flight_.represented && stays_sparse(current)) return sparse_arrived(current);
  if (state_ == State::Submitted) {
    const bool was_parked = std::exchange(flight_.parked, false);
    if (!current.defined()) {
      if (was_parked) current = view_;
      return Arrival::Nothing;
    }
    if (holds(current)) refuse("its hooks were removed while it was being reduced");
    take_late(current, was_parked);
    fired_ = true;
    return Arrival::Late;
  }
  if (!current.defined()) return Arrival::Nothing;
  if (!holds(current)) {
    if (!narrow || !this->narrow(current)) pack(current);
  } else if (state_ == State::Idle && current._version() == version_) {
    put_back_older_value();  // an undefined gradient came
    return Arrival::Nothing;
  }
  fired_ = true;
  return std::exchange(state_, State::Filled) == State::Idle ? Arrival::First : Arrival::Again;
}

bool GradientSlot::arrived_alone() {
  at::Tensor& current = grad();
  if (!current.defined()) return false;
  if (current.layout() != at::kStrided) {
    const PlainMode plain;
    current = current.to_dense();
  }
  fired_ = true;
  return true;
}

void GradientSlot::adopt_older_value() {
  at::Tensor& current = grad();
  if (current.defined() && !holds(current) && !current.requires_grad()) pack(current);
}

void GradientSlot::take_late(at::Tensor& gradient, bool exclusive) {
  const PlainMode plain;
  check_shape(gradient);
  const bool has_graph = gradient.requires_grad();
  const bool linear = settings_.is_linear();
  if (flight_.represented && (has_graph || !linear)) gradient = view_;  // the first one stays
  if (flight_.represented && !linear) {
    refuse(core::concat("a second one came while the first was being reduced; ",
                        to_string(settings_.op),
                        " can't add them. Call synchronize() or zero_grad() before backward()"));
  }
  if (flight_.represented && has_graph) {
    refuse(
        "it has a graph (create_graph), and an earlier one of this step is being reduced; call "
        "zero_grad() or synchronize() before backward()");
  }
  if (late_.defined()) {
    late_.add_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
  } else if (exclusive && part_.lies_alike(gradient) && !has_graph && !gradient.is_inference()) {
    late_ = gradient;  // autograd has just made it, for nobody else
  } else {
    late_ = copy_like(view_, gradient);
  }
  beside_ = true;
  flight_.represented = true;
  if (has_graph) {
    keep(gradient);
  } else {
    gradient = view_;
  }
}

// The memory of a weight of 0 is emptied: its values may be NaN, as the mean over no samples is.
double GradientSlot::weigh(std::optional<double> weight, bool present) {
  const double factor = weight.value_or(1);
  if (factor == 1 || !(present || older_.present)) return factor;
  // If no rank has more than that, it comes back to the bit.
  if (!present && !older_.values.defined()) older_.values = view_.clone();
  factor == 0 ? view_.zero_() : view_.mul_(factor);
  return factor;
}

bool GradientSlot::prepare_submission(std::optional<double> weight) {
  at::Tensor& current = grad();
  bool present = state_ == State::Filled;
  if (narrowed_) {
    narrowed_ = present && !weight && is_kept(current);  // else the program has changed it
    kept_.reset();
    if (narrowed_) current = view_;
  }
  if (present && !weight && holds(current)) {  // most of them
    state_ = State::Submitted;
    flight_.represented = flight_.in_bucket = true;
    version_ = view_version();
    return true;
  }
  if (holds(current)) {
    if (!present) use_older_value();
  } else if (current.defined() && !stays_sparse(current)) {
    // Without a hook: the program put it there, or it was hooked after backward().
    if (!(present && is_kept(current))) pack(current);
    present = true;
  } else {
    present = false;
    if (!neutral_) view_.fill_(neutral_element(settings_.op));
    neutral_ = true;
    older_.present = false;
  }
  flight_.represented = present || older_.present;
  state_ = State::Submitted;
  const bool counts = weigh(weight, present) != 0;
  flight_.in_bucket = flight_.represented && counts;
  version_ = view_version();
  return present && counts;
}

void GradientSlot::inspect(std::optional<double> weight) {
  if (state_ != State::Submitted) return;
  at::Tensor& current = grad();
  if (flight_.parked && !current.defined()) current = parked();
  flight_.parked = false;
  if (holds(current)) {
    if (view_version() != version_) {
      refuse(
          "it was written to while it was being reduced (WaitIn::Step); call synchronize() after "
          "backward(), before anything that reads or writes gradients");
    }
  } else if (!is_kept(current) && (flight_.represented || current.defined())) {
    if (flight_.represented) forget_bucket_value();
    if (!current.defined() || stays_sparse(current)) return;
    check_shape(current);
    beside_ = true;
    late_ = copy_like(view_, current);
  }
  if (!beside_ || !late_.defined() || !weight) return;
  if (*weight == 0) {
    late_.reset();
  } else {
    late_.mul_(*weight);
  }
}

void GradientSlot::settle(const Result& result) {
  at::Tensor& current = grad();
  const bool defined = !result.failed && (result.produced || older_.present);
  if (result.failed) {
    current.reset();
    neutral_ = false;
  } else if (result.unused && older_.present) {
    restore_older_value();
  }
  if (!result.failed && result.late.defined()) {
    combine_late(result, defined);
  } else if (!result.failed && !defined && is_older_sparse(current)) {
    // No rank had anything new: it stays.
  } else if (result.discarded || !defined) {
    current.reset();
  } else {
    current = view_;
  }
  // Where the bucket was reduced, other ranks may have added something, if only an older value.
  neutral_ = neutral_ && result.unused && !result.late.defined();
  end_round();
}

void GradientSlot::settle_reduced() {
  at::Tensor& current = grad();
  if (!current.is_same(view_)) current = view_;
  neutral_ = false;
  end_round();
}

// The reduction that would have put the shares together did not happen.
void GradientSlot::restore_older_value() {
  const PlainMode plain;
  if (older_.values.defined()) view_.copy_(older_.values);
  if (older_.scaled) view_.mul_(1 / settings_.older_share);
}

void GradientSlot::undo_older_value() {
  if (holds(grad())) restore_older_value();
  older_ = {};
}

void GradientSlot::combine_late(const Result& result, bool defined) {
  const bool replaces = result.discarded || !defined;
  if (replaces && result.late.layout() != at::kStrided) {
    grad() = result.late;
    older_sparse_ = decltype(older_sparse_)(result.late.getIntrusivePtr());
    return;
  }
  grad() = view_;
  if (replaces) {
    view_.copy_(result.late);
  } else if (settings_.is_linear()) {
    view_.add_(result.late);
  } else if (settings_.op == ReduceOp::Product) {
    view_.mul_(result.late);
  } else {
    view_.copy_(settings_.op == ReduceOp::Min ? at::minimum(view_, result.late)
                                              : at::maximum(view_, result.late));
  }
}

void GradientSlot::abandon(bool finished) {
  at::Tensor& current = grad();
  if (flight_.parked && !current.defined()) current = parked();
  if (!finished && holds(current)) current.reset();
  neutral_ = false;
  end_round();
}

void GradientSlot::end_round() {
  state_ = State::Idle;
  fired_ = narrowed_ = false;
  flight_ = {};
  if (!std::exchange(beside_, false)) return;
  older_ = {};
  sparse_ = {};
  late_.reset();
  kept_.reset();
}

}  // namespace horon::torch_detail
