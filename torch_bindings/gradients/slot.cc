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
    : is_own_(settings.owners == nullptr ||
              settings.owners->is_own(parameter.unsafeGetTensorImpl())),
      parameter_(std::move(parameter)),
      settings_(settings),
      name_(std::move(name)),
      kept_(at::Tensor().getIntrusivePtr()),
      older_sparse_(at::Tensor().getIntrusivePtr()) {}

void GradientSlot::refuse(const std::string& why) const {
  throw Error(ErrorCode::InvalidArgument, core::concat("gradient of \"", name_, "\": ", why));
}

void GradientSlot::refuse_second_thread() const {
  refuse("two threads run backward() on it at the same time; run one backward() after the other");
}

bool GradientSlot::was_kept(const at::Tensor& tensor) const {
  return tensor.defined() && !kept_.expired() &&
         kept_._unsafe_get_target() == tensor.unsafeGetTensorImpl();
}

bool GradientSlot::is_kept(const at::Tensor& tensor) const {
  return was_kept(tensor) && kept_version_ == tensor._version();
}

void GradientSlot::keep(const at::Tensor& tensor) {
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
  if (extras_ && extras_->older_values.defined()) {
    if (extras_->older_values.sizes() != view_.sizes()) {
      forget_older();
    } else {
      extras_->older_values = copy_like(view_, extras_->older_values);
    }
  }
  if (!moves) return;
  grad().reset();
  if (before.sizes() != view_.sizes()) return;  // values of another shape mean nothing any more
  assign_values(view_, before);
  grad() = view_;
}

void GradientSlot::check_shape(const at::Tensor& gradient) const {
  if (gradient.sizes() == view_.sizes()) return;
  refuse(
      core::concat("it has shape ", gradient.sizes(), ", but the parameter has ", view_.sizes()));
}

// .grad no longer stands for what was submitted.
void GradientSlot::drop() {
  state_ = State::Dropped;
  aside_.reset();
  if (extras_) extras_->late.reset();
}

// After an exception between the hooks, or if no gradient came: the view goes back into .grad,
// unless the program has set another tensor since.
void GradientSlot::put_back_aside() {
  if (!aside_.defined()) return;
  at::Tensor aside = std::move(aside_);
  if (!grad().defined()) grad() = std::move(aside);
}

void GradientSlot::before_accumulate(std::optional<double> weight) {
  at::Tensor& current = grad();
  if (!is_submitted() && !extras_ && !current.defined()) return;  // most of them
  look_for_zeroing();
  if (!fired_ && is_older_sparse(current)) {
    aside_ = std::move(current);
    return;
  }
  // The program has dropped the older sparse value.
  if (extras_ && !aside_.defined() && !current.defined()) extras_->older_sparse.reset();
  if (is_submitted()) {
    if (holds(current)) {
      aside_ = std::move(current);
    } else if (is_represented() && (current.defined() || !aside_.defined())) {
      drop();  // by the program, or it is about to grow (create_graph)
    }
  } else if (state_ == State::Idle && holds(current)) {
    use_older_value();
    if (weight == 0.0 && !settings_.adds_older_value()) {
      const PlainMode plain;
      extras().older_values = view_.clone();  // this rank's gradients count 0
    }
    version_ = current._version();
  }
  extends_older_ = has_older() && current.defined() && (holds(current) || was_kept(current));
}

GradientSlot::Arrival GradientSlot::after_accumulate(bool narrow) {
  at::Tensor& current = grad();
  at::Tensor aside = std::move(aside_);
  if (!current.defined()) {
    current = std::move(aside);
    return Arrival::Nothing;
  }
  if (is_older_sparse(aside)) extras().older_sparse = aside;
  if (!is_represented() && stays_sparse(current)) return sparse_arrived(current);
  if (is_submitted()) {
    if (holds(current)) {
      refuse(
          "its hooks were removed while it was being reduced, or two threads run backward() on it "
          "at the same time");
    }
    take_late(current, /*exclusive=*/aside.defined());
    fired_ = true;
    return Arrival::Late;
  }
  if (!holds(current)) {
    // Autograd has made a new tensor of the one with the older value (create_graph), or a hook of
    // the program has; else the program has dropped the older value.
    if (!extends_older_) forget_older();
    if (!narrow || !this->narrow(current)) pack(current);
  } else if (state_ == State::Idle && current._version() == version_) {
    put_back_older_value();  // an undefined gradient came
    return Arrival::Nothing;
  }
  fired_ = true;
  note_version();
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

void GradientSlot::take_late(at::Tensor& gradient, bool exclusive) {
  const PlainMode plain;
  check_shape(gradient);
  const bool has_graph = gradient.requires_grad();
  const bool linear = settings_.is_linear();
  if (is_represented() && (has_graph || !linear)) {
    gradient = view_;  // the first one stays
    if (!linear) {
      refuse(core::concat(
          "a second one came while the first was being reduced, and ", to_string(settings_.op),
          " can't add gradients; call synchronize() or zero_grad() before backward()"));
    }
    refuse(
        "it has a graph (create_graph), but an earlier gradient of this step is still being "
        "reduced; call zero_grad() or synchronize() before backward()");
  }
  at::Tensor& late = extras().late;
  if (late.defined()) {
    late.add_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
  } else if (exclusive && part_.lies_alike(gradient) && !has_graph && !gradient.is_inference()) {
    late = gradient;  // autograd has just made it, for nobody else
  } else {
    late = copy_like(view_, gradient);
  }
  if (has_graph) {
    keep(gradient);
  } else {
    gradient = view_;
  }
}

// With a weight of 0 the memory is zeroed: its values may be NaN, as the mean over no samples is.
double GradientSlot::weigh(std::optional<double> weight, bool present) {
  const double factor = weight.value_or(1);
  if (factor == 1 || !(present || has_older())) return factor;
  // If no rank has a new gradient, this copy restores the older value exactly.
  if (!present && !extras_->older_values.defined()) extras_->older_values = view_.clone();
  factor == 0 ? view_.zero_() : view_.mul_(factor);
  return factor;
}

bool GradientSlot::prepare_submission(std::optional<double> weight, bool is_shown) {
  look_for_zeroing();
  at::Tensor& current = grad();
  bool present = state_ == State::Filled;
  // The gradient may contain an older value, though the program has written to it.
  const bool extends = !holds(current) && was_kept(current);
  // The program can change our own tensor (grad().set_data()); then the bucket needs a new view.
  if (!holds(view_)) view_ = bucket_->make_view(part_number_);
  if (narrowed_) {
    // Else the program has changed it, or is to see it in the bucket.
    narrowed_ = present && !weight && !is_shown && is_kept(current);
    kept_.reset();
    if (narrowed_) current = view_;
  }
  if (present && !weight && holds(current)) {  // most of them
    state_ = State::Reducing;
    has_weight_ = true;
    version_ = view_version();
    return true;
  }
  if (holds(current)) {
    if (!present) use_older_value();
  } else if (current.defined() && !stays_sparse(current)) {
    // It came without a hook: the program put it there, or it was hooked after backward().
    if (!(present && is_kept(current))) {
      if (!extends) forget_older();
      pack(current);
    }
    present = true;
  } else {
    present = false;
    leave_to_holders();
    if (!neutral_) view_.fill_(neutral_element(settings_.op));
    neutral_ = true;
    forget_older();
  }
  state_ = present || has_older() ? State::Reducing : State::Absent;
  has_weight_ = weigh(weight, present) != 0;
  version_ = view_version();
  return present && has_weight_;
}

void GradientSlot::inspect(std::optional<double> weight) {
  if (!is_submitted()) return;
  put_back_aside();
  at::Tensor& current = grad();
  if (holds(current)) {
    if (view_version() != version_) {
      refuse(
          "it was written to while it was being reduced (WaitIn::Step); call synchronize() after "
          "backward(), before anything that reads or writes gradients, and run backward() on it in "
          "one thread at a time");
    }
  } else if (!is_kept(current) && (is_represented() || current.defined())) {
    if (is_represented()) drop();
    if (!current.defined() || stays_sparse(current)) return;
    check_shape(current);
    extras().late = copy_like(view_, current);
  }
  if (!weight || !has_late()) return;
  if (*weight == 0) {
    extras_->late.reset();
  } else {
    extras_->late.mul_(*weight);
  }
}

void GradientSlot::settle(const Result& result) {
  at::Tensor& current = grad();
  if (!is_own_) {
    // Else before_bucket() may have written there. What has failed counts as unused.
    neutral_ = neutral_ && result.unused && !result.failed;
    current.reset();
    return end_round();
  }
  const bool defined = !result.failed && (result.produced || has_older());
  if (result.failed) {
    current.reset();
    neutral_ = false;
  } else if (result.unused && has_older()) {
    restore_older_value();
  } else {
    add_older_value();
    if (!result.produced) keep_older_value();
  }
  if (!result.failed && result.late.defined()) {
    combine_late(result, defined);
  } else if (!result.failed && !defined && restore_older_sparse()) {
    // No rank had anything new that counts: the older sparse value stays.
  } else if (result.discarded || !defined) {
    current.reset();
  } else {
    show_result();
  }
  // If the bucket was reduced, other ranks may have added to this memory, if only an older value.
  neutral_ = neutral_ && result.unused && !result.late.defined();
  end_round();
}

void GradientSlot::settle_reduced() {
  if (!is_own_) return settle({});
  show_result();
  add_older_value();
  neutral_ = false;
  end_round();
}

void GradientSlot::combine_late(const Result& result, bool defined) {
  const bool replaces = result.discarded || !defined;
  at::Tensor older;  // that is not in the result
  if (settings_.adds_older_value() && extras_ && !result.discarded) older = extras_->older_sparse;
  if (replaces && result.late.layout() != at::kStrided) {
    grad() = older.defined() ? result.late.add(older).coalesce() : result.late;
    older_sparse_ = decltype(older_sparse_)(grad().getIntrusivePtr());
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
  if (older.defined()) view_.add_(older);
}

void GradientSlot::abandon(bool finished) {
  put_back_aside();
  at::Tensor& current = grad();
  if (!finished && holds(current)) current.reset();
  neutral_ = false;
  end_round();
}

void GradientSlot::end_round() {
  state_ = State::Idle;
  fired_ = narrowed_ = has_weight_ = false;
  kept_.reset();
  aside_.reset();
  if (!extras_) return;
  *extras_ = {};
  spare_ = std::move(extras_);
}

}  // namespace horon::torch_detail
