// The value that .grad holds from before a round, to which new gradients are added.
#include <memory>
#include <utility>

#include "horon/torch_bindings/gradients/slot.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::torch_detail {

// .grad holds a value from an earlier step (no zero_grad(), or zero_grad(false)): the new gradients
// are added to it, on all ranks. Every rank holds the same old value. Average, Min and Max of equal
// values are that value; where the result is divided as well, the value is multiplied first. A Sum
// would count it once for each rank, so there it is kept aside and added to the result.
void GradientSlot::use_older_value() {
  if (std::exchange(extras().has_older, true)) return;
  const PlainMode plain;
  neutral_ = false;
  if (settings_.keeps_older_value()) extras_->unrounded = view_.clone();
  if (settings_.adds_older_value()) {
    extras_->older_values = view_.clone();
    view_.zero_();
  } else if (settings_.older_share != 1) {
    view_.mul_(settings_.older_share);
  } else if (settings_.op == ReduceOp::Product && view_.count_nonzero().item<int64_t>() != 0) {
    forget_older();
    refuse(
        "Product can't add to the gradient of an earlier step; call zero_grad() before backward()");
  }
}

void GradientSlot::forget_older() {
  if (!extras_) return;
  extras_->has_older = false;
  extras_->older_values.reset();
}

void GradientSlot::adopt_older_value() {
  at::Tensor& current = grad();
  if (!current.defined() || holds(current) || current.requires_grad()) return;
  forget_older();
  pack(current);
}

void GradientSlot::count_as_new() {
  at::Tensor& current = grad();
  const PlainMode plain;
  const double share = settings_.share_as_new();
  put_back_older_value();
  count_sparse_as_new(share);
  if (!current.defined() || is_submitted()) return;
  if (has_older() && settings_.adds_older_value() && (holds(current) || was_kept(current))) {
    current.detach().add_(extras_->older_values, share);
    forget_older();
  } else if (holds(current) && state_ == State::Idle) {  // as a tensor of the program's
    current = view_.clone();
    if (share != 1) current.mul_(share);
  }
}

// What is kept aside stays there: ranks that have gathered nothing hold it as an older value too.
void GradientSlot::gather_anew() {
  put_back_aside();
  put_back_older_value();
  if (state_ != State::Filled) return;
  at::Tensor& current = grad();
  const PlainMode plain;
  std::unique_ptr<Extras> older;
  if (!settings_.adds_older_value()) {
    count_as_new();
  } else if (keeps_older_aside() && (holds(current) || was_kept(current))) {
    older = std::move(extras_);
  }
  if (holds(current)) current = view_.clone();
  neutral_ = false;
  end_round();
  if (older == nullptr) return;
  extras_ = std::move(older);
  keep(current);
  note_version();
}

void GradientSlot::leave_submitted() {
  put_back_aside();
  at::Tensor& current = grad();
  if (holds(current) || was_kept(current)) {
    const bool stays =
        state_ == State::Reducing && is_own_ && has_older() && settings_.adds_older_value();
    const PlainMode plain;
    if (stays) view_.copy_(extras_->older_values);
    current = stays ? view_ : at::Tensor();
  }
  neutral_ = false;
  end_round();
}

void GradientSlot::zeroed_in_place() {
  forget_older();
  if (extras_) extras_->older_sparse.reset();
}

void GradientSlot::note_version() {
  const at::Tensor& current = grad();
  if (keeps_older_aside() && !current.is_inference()) extras_->version = current._version();
}

// The program may do so without a call that this reducer hears of: zero_grad() of a module.
void GradientSlot::look_for_zeroing() {
  if (!keeps_older_aside()) return;
  const at::Tensor& current = grad();
  if (!current.defined() || current.is_inference() || !(fired_ || was_kept(current))) return;
  const bool is_sparse = current.layout() == at::kSparse;
  if (is_older_sparse(current) || (is_submitted() && !is_sparse)) return;
  if (current._version() == extras_->version) return;
  if (current_stream_is_captured(current.device())) return;  // values can't be read there
  const PlainMode plain;
  const at::Tensor values = is_sparse ? current._values() : current;
  if (values.count_nonzero().item<int64_t>() == 0) zeroed_in_place();
}

void GradientSlot::add_older_value() {
  if (!has_older() || !settings_.adds_older_value()) return;
  const PlainMode plain;
  view_.add_(extras_->older_values);
}

// No rank has added to the older value, but it was rounded in blocks with other gradients.
void GradientSlot::keep_older_value() {
  if (!extras_ || !extras_->unrounded.defined()) return;
  const PlainMode plain;
  view_.copy_(extras_->unrounded);
}

// The value was scaled to this rank's share, or kept aside, but nothing was reduced.
void GradientSlot::restore_older_value() {
  const PlainMode plain;
  if (extras_->older_values.defined()) view_.copy_(extras_->older_values);
  if (settings_.older_share != 1) view_.mul_(1 / settings_.older_share);
}

void GradientSlot::undo_older_value() {
  if (holds(grad())) restore_older_value();
  forget_older();
}

}  // namespace horon::torch_detail
