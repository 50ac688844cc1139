#include "horon/torch_bindings/gradient_slot.h"

#include <cstring>
#include <limits>
#include <utility>

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

constexpr bool is_linear(ReduceOp op) { return op == ReduceOp::Sum || op == ReduceOp::Average; }

bool same_memory_order(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device() && !a.is_neg() &&
         a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

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

void assign_values(const at::Tensor& to, const at::Tensor& from) {
  if (from.layout() != at::kStrided) {
    to.copy_(from.to_dense());
  } else if (same_memory_order(to, from)) {
    if (to.numel() > 0) std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  } else {
    to.copy_(from);
  }
}

GradientSlot::Busy::Busy(GradientSlot& slot) : slot_(slot) {
  if (!slot_.busy_.test_and_set(std::memory_order_acquire)) return;
  slot_.refuse("two threads run backward() on it at a time");
}

GradientSlot::Busy::~Busy() { slot_.busy_.clear(std::memory_order_release); }

GradientSlot::GradientSlot(std::string name, at::Tensor parameter, ReduceOp op, int world_size)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      op_(op),
      world_size_(world_size),
      kept_(at::Tensor().getIntrusivePtr()) {}

void GradientSlot::refuse(const std::string& why) const {
  throw Error(ErrorCode::InvalidArgument, core::concat("gradient of \"", name_, "\": ", why));
}

bool GradientSlot::is_kept(const at::Tensor& tensor) const {
  if (!tensor.defined() || kept_.expired()) return false;
  return kept_._unsafe_get_target() == tensor.unsafeGetTensorImpl() &&
         kept_version_ == tensor._version();
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
  part_ = part;
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

// The gradient goes into the bucket, and .grad becomes the view of it.
void GradientSlot::pack(at::Tensor& gradient) {
  check_shape(gradient);
  // The program can bend our own tensor (grad().set_data()); then the bucket needs a new view.
  if (gradient.is_same(view_)) view_ = bucket_->make_view(part_);
  neutral_ = false;
  assign_values(view_, gradient);
  if (gradient.requires_grad()) {
    keep(gradient);
  } else {
    gradient = view_;
  }
}

// .grad holds a value from an earlier step (no zero_grad(), or zero_grad(false)): the new gradients
// are added to it, on all ranks. Every rank holds the same old value. Average, Min and Max let it
// pass as it is; in a Sum each rank brings its share of it.
void GradientSlot::use_older_value() {
  if (std::exchange(older_, true)) return;
  neutral_ = false;
  if (op_ == ReduceOp::Sum && world_size_ > 1) {
    view_.mul_(1.0 / world_size_);
    scaled_ = true;
  } else if (op_ == ReduceOp::Product && view_.count_nonzero().item<int64_t>() != 0) {
    older_ = false;
    refuse("Product can't go on from the value of an earlier step; call zero_grad() first");
  }
}

void GradientSlot::forget_bucket_value() {
  discarded_ = true;
  represented_ = false;
  parked_ = false;
  late_.reset();
}

void GradientSlot::before_accumulate() {
  at::Tensor& current = grad();
  if (state_ == State::Submitted) {
    if (holds(current)) {
      current.reset();
      parked_ = true;
    } else if (represented_ && !(parked_ && !current.defined())) {
      forget_bucket_value();  // dropped or replaced by the program, or about to grow (create_graph)
    }
  } else if (state_ == State::Idle && holds(current)) {
    use_older_value();
    version_ = current._version();
  }
}

GradientSlot::Arrival GradientSlot::after_accumulate() {
  at::Tensor& current = grad();
  if (state_ == State::Submitted) {
    const bool was_parked = std::exchange(parked_, false);
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
    pack(current);
  } else if (state_ == State::Idle && current._version() == version_) {
    return Arrival::Nothing;  // an undefined gradient came: the older value stands untouched
  }
  fired_ = true;
  return std::exchange(state_, State::Filled) == State::Idle ? Arrival::First : Arrival::Again;
}

void GradientSlot::take_late(at::Tensor& gradient, bool exclusive) {
  check_shape(gradient);
  const bool has_graph = gradient.requires_grad();
  if (represented_ && (has_graph || !is_linear(op_))) gradient = view_;  // the first one stays
  if (represented_ && !is_linear(op_)) {
    refuse(core::concat("a second one came while the first was being reduced; ", to_string(op_),
                        " can't add them. Call synchronize() or zero_grad() before backward()"));
  }
  if (represented_ && has_graph) {
    refuse(
        "it has a graph (create_graph), and an earlier one of this step is being reduced; call "
        "zero_grad() or synchronize() before backward()");
  }
  if (late_.defined()) {
    late_.add_(gradient.layout() == at::kStrided ? gradient : gradient.to_dense());
  } else if (exclusive && gradient.layout() == at::kStrided && !has_graph &&
             !gradient.is_inference() && same_memory_order(gradient, view_)) {
    late_ = gradient;  // autograd has just made it, for nobody else
  } else {
    late_ = copy_like(view_, gradient);
  }
  represented_ = true;
  if (has_graph) {
    keep(gradient);
  } else {
    gradient = view_;
  }
}

bool GradientSlot::prepare_submission() {
  at::Tensor& current = grad();
  bool present = state_ == State::Filled;
  if (holds(current)) {
    if (!present) use_older_value();
  } else if (current.defined()) {
    // Without a hook: the program put it there, or it was hooked after backward().
    if (!(present && is_kept(current))) pack(current);
    present = true;
  } else {
    present = false;
    if (!neutral_) view_.fill_(neutral_element(op_));
    neutral_ = true;
    older_ = false;
  }
  represented_ = in_bucket_ = present || older_;
  state_ = State::Submitted;
  version_ = view_._version();
  return present;
}

void GradientSlot::inspect() {
  if (state_ != State::Submitted) return;
  at::Tensor& current = grad();
  if (parked_ && !current.defined()) current = view_;
  parked_ = false;
  if (holds(current)) {
    if (view_._version() != version_) {
      refuse(
          "it was written to while it was being reduced; between backward() and step() call "
          "synchronize() first");
    }
  } else if (is_kept(current)) {
    return;
  } else if (represented_ || current.defined()) {
    if (represented_) forget_bucket_value();
    if (!current.defined()) return;
    check_shape(current);
    late_ = copy_like(view_, current);
  }
}

void GradientSlot::settle(const Result& result) {
  at::Tensor& current = grad();
  const bool defined = !result.failed && (result.produced || older_);
  if (result.failed) {
    current.reset();
    neutral_ = false;
  } else if (result.unused && scaled_) {
    view_.mul_(world_size_);  // the reduction that would have added the shares did not happen
  }
  if (!result.failed && result.late.defined()) {
    combine_late(result, defined);
    current = view_;
  } else if (result.discarded || !defined) {
    current.reset();
  } else {
    current = view_;
  }
  // Where the bucket was reduced, other ranks may have added something, if only an older value.
  neutral_ = neutral_ && result.unused && !result.late.defined();
  end_step();
}

void GradientSlot::combine_late(const Result& result, bool defined) {
  if (result.discarded || !defined) {
    view_.copy_(result.late);
  } else if (is_linear(op_)) {
    view_.add_(result.late);
  } else if (op_ == ReduceOp::Product) {
    view_.mul_(result.late);
  } else {
    view_.copy_(op_ == ReduceOp::Min ? at::minimum(view_, result.late)
                                     : at::maximum(view_, result.late));
  }
}

void GradientSlot::abandon(bool finished) {
  at::Tensor& current = grad();
  if (parked_ && !current.defined()) current = view_;
  if (!finished && holds(current)) current.reset();
  neutral_ = false;
  end_step();
}

void GradientSlot::end_step() {
  state_ = State::Idle;
  fired_ = older_ = scaled_ = represented_ = in_bucket_ = parked_ = discarded_ = false;
  late_.reset();
  kept_.reset();
}

}  // namespace horon::torch_detail
