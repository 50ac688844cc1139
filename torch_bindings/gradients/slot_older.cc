// The value that .grad holds from before a round, to which new gradients are added.
#include <utility>

#include "horon/torch_bindings/gradients/slot.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

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
  count_sparse_as_new(share);
  if (!holds(current)) return;
  if (state_ == State::Idle) {  // as a tensor of the program's
    current = view_.clone();
    if (share != 1) current.mul_(share);
  } else if (state_ == State::Filled && settings_.adds_older_value()) {
    if (has_older()) view_.add_(extras_->older_values, share);
    forget_older();
  }
}

void GradientSlot::gather_anew() {
  put_back_aside();
  put_back_older_value();
  if (state_ != State::Filled) return;
  count_as_new();
  at::Tensor& current = grad();
  const PlainMode plain;
  if (holds(current)) current = view_.clone();
  neutral_ = false;
  end_round();
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
