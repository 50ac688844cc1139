// The way of a gradient into the memory of its bucket, and of the result into .grad.
#include <atomic>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/gradients/slot.h"
#include "horon/torch_bindings/tensors/holders.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

// Warns once: a program that makes graphs (create_graph) may well not need them.
void tell_that_graphs_end(const std::string& name) {
  static std::atomic_flag told;
  if (told.test_and_set()) return;
  core::log(core::LogLevel::Warn,
            core::concat(
                "gradient of \"", name, "\": backward(create_graph) made it with a graph, but the ",
                "reduced gradient in .grad has none, so a loss computed from .grad treats it as a ",
                "constant. For such a loss call autograd's grad(), or put no_sync() around the ",
                "backward() with create_graph (in C++ also {.wait_in = WaitIn::Step})"));
}

}  // namespace

void assign_values(const at::Tensor& to, const at::Tensor& from) {
  to.copy_(from.layout() == at::kStrided ? from : from.to_dense());
}

// A program may keep the .grad tensor of an earlier step, as without Horon. Before the bucket's
// memory is written anew, a tensor that is kept gets memory of its own.
void GradientSlot::leave_to_holders() {
  if (!is_held_by_others(view_) || !holds(view_)) return;
  const PlainMode plain;
  const at::Tensor values = view_.clone();
  // Not set_(): its values are not changed, so neither is its version.
  c10::TensorImpl& kept = *view_.unsafeGetTensorImpl();
  kept.set_storage_keep_dtype(values.storage());
  kept.set_storage_offset(0);
  view_ = bucket_->make_view(part_number_);
}

// The gradient goes into the bucket, and .grad becomes the view of it.
void GradientSlot::pack(at::Tensor& gradient) {
  leave_to_holders();
  neutral_ = narrowed_ = false;
  if (part_.lies_alike(gradient) && holds(view_)) {
    part_.copy(gradient, view_);
  } else {
    pack_unlike(gradient);
  }
  if (gradient.requires_grad()) {
    keep(gradient);
  } else {
    gradient = view_;
  }
}

// The gradient goes into the narrow memory, from which it travels. .grad becomes the view at the
// submission.
bool GradientSlot::narrow(const at::Tensor& gradient) {
  if (!part_.narrows() || !part_.lies_alike(gradient) || gradient.requires_grad()) return false;
  // An inference tensor has no version that would show a change.
  if (gradient.is_inference() || !holds(view_)) return false;
  leave_to_holders();
  neutral_ = false;
  part_.narrow(gradient, view_);
  narrowed_ = true;
  keep(gradient);
  return true;
}

void GradientSlot::pack_unlike(const at::Tensor& gradient) {
  const PlainMode plain;
  check_shape(gradient);
  // As in prepare_submission().
  if (!holds(view_)) view_ = bucket_->make_view(part_number_);
  assign_values(view_, gradient);
}

void GradientSlot::show_result() {
  at::Tensor& current = grad();
  if (current.is_same(view_)) return;
  const bool had_graph = current.defined() && current.requires_grad();
  if (had_graph && settings_.wait_in == WaitIn::Backward) tell_that_graphs_end(name_);
  current = view_;
}

}  // namespace horon::torch_detail
