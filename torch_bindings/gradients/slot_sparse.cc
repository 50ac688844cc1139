// Gradients that stay sparse, on their way through a step.
#include <optional>
#include <utility>

#include <ATen/ops/zeros_like.h>

#include "horon/torch_bindings/gradients/slot.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {

bool GradientSlot::stays_sparse(const at::Tensor& gradient) const {
  if (settings_.sparse_as_dense || !gradient.defined()) return false;
  return bucket_->is_sparse() || (gradient.layout() == at::kSparse && gradient.sparse_dim() > 0);
}

bool GradientSlot::is_older_sparse(const at::Tensor& gradient) const {
  return gradient.defined() && !older_sparse_.expired() &&
         older_sparse_._unsafe_get_target() == gradient.unsafeGetTensorImpl();
}

// True: .grad now holds the result of an earlier round and nothing else. It drops what came on this
// rank since, which had a weight of 0.
bool GradientSlot::restore_older_sparse() {
  at::Tensor& current = grad();
  if (is_older_sparse(current)) return true;
  if (!current.defined() || !extras_ || !extras_->older_sparse.defined()) return false;
  current = extras_->older_sparse;
  return true;
}

// The gradient stays in .grad, where autograd adds later ones to it.
GradientSlot::Arrival GradientSlot::sparse_arrived(at::Tensor& gradient) {
  const PlainMode plain;
  check_shape(gradient);
  if (gradient.layout() == at::kStrided) gradient = gradient.to_sparse(1);
  note_version();
  return std::exchange(fired_, true) ? Arrival::Again : Arrival::First;
}

// Also where a new gradient has come already, unless that is being reduced.
void GradientSlot::count_sparse_as_new(double share) {
  at::Tensor& current = grad();
  if (is_older_sparse(current)) {
    older_sparse_.reset();
    if (share != 1) current = current.mul(share);
  } else if (extras_ && extras_->older_sparse.defined() && current.defined() && !is_submitted()) {
    current = current.add(extras_->older_sparse.mul(share));
    extras_->older_sparse.reset();
  }
}

void GradientSlot::collect_sparse(std::optional<double> weight) {
  if (settings_.sparse_as_dense) return;
  put_back_aside();
  look_for_zeroing();
  const at::Tensor& current = grad();
  if (!current.defined()) return;  // dropped by the program, or never there
  at::Tensor older = extras_ ? extras_->older_sparse : at::Tensor();
  at::Tensor values;
  if (is_older_sparse(current)) {
    older = current;
  } else if (stays_sparse(current)) {
    check_shape(current);
    values = (current.layout() == at::kStrided ? current.to_sparse(1) : current).detach();
  }
  const bool is_older = is_older_sparse(current) && !fired_;
  if (older.defined()) {
    if (settings_.adds_older_value()) {
      extras().older_sparse = older;
      older = at::zeros_like(older);  // this rank takes part where others have something new
    } else {
      older = older.mul(settings_.older_share);
    }
    values = values.defined() ? values.add(older) : older;
  }
  if (!values.defined()) return;
  extras().sparse = values.coalesce();
  extras_->sparse_is_older = is_older;
  if (!weight || *weight == 1) return;
  // The mean over no samples may be NaN.
  at::Tensor& sparse = extras_->sparse;
  sparse = *weight == 0 ? at::zeros_like(sparse) : sparse.mul(*weight);
  extras_->sparse_is_older = is_older || *weight == 0;
}

}  // namespace horon::torch_detail
