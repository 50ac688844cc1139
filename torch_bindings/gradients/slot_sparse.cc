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

// It stays in .grad, where autograd adds those that come later to it.
GradientSlot::Arrival GradientSlot::sparse_arrived(at::Tensor& gradient) {
  const PlainMode plain;
  check_shape(gradient);
  if (gradient.layout() == at::kStrided) gradient = gradient.to_sparse(1);
  return std::exchange(fired_, true) ? Arrival::Again : Arrival::First;
}

void GradientSlot::collect_sparse(std::optional<double> weight) {
  if (settings_.sparse_as_dense) return;
  at::Tensor& current = grad();
  if (flight_.parked && sparse_.older_aside.defined() && !current.defined()) {
    current = std::exchange(sparse_.older_aside, at::Tensor());  // nothing came
  }
  if (!current.defined()) return;  // dropped by the program, or never there
  at::Tensor older = sparse_.older_aside;
  at::Tensor values;
  if (is_older_sparse(current)) {
    older = current;
  } else if (stays_sparse(current)) {
    check_shape(current);
    values = (current.layout() == at::kStrided ? current.to_sparse(1) : current).detach();
  }
  beside_ = true;
  sparse_.is_older = !values.defined() && !fired_;
  if (older.defined()) {
    older = older.mul(settings_.older_share);
    values = values.defined() ? values.add(older) : older;
  }
  if (!values.defined()) return;
  sparse_.gradient = values.coalesce();
  if (!weight || *weight == 1) return;
  // The mean over no samples may be NaN.
  sparse_.gradient =
      *weight == 0 ? at::zeros_like(sparse_.gradient) : sparse_.gradient.mul(*weight);
  sparse_.is_older = sparse_.is_older || *weight == 0;
}

}  // namespace horon::torch_detail
