#include "horon/torch_bindings/lr/layer_ratio.h"

#include <cmath>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/gradients/gradient_norm.h"

namespace horon::torch_detail {

at::Tensor layer_norm_of(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return norm_on_device({tensor});
  return at::scalar_tensor(std::sqrt(sum_of_squares(tensor)), at::kDouble);
}

at::Tensor layer_ratio(const at::Tensor& numerator, const at::Tensor& denominator) {
  const at::Tensor both = numerator.gt(0).logical_and_(denominator.gt(0));
  return at::where(both, numerator.div(denominator), at::ones_like(numerator));
}

double layer_ratio(double numerator, double denominator) {
  return numerator > 0 && denominator > 0 ? numerator / denominator : 1;
}

const at::Tensor& dense_gradient(const at::Tensor& parameter, const char* optimizer) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() == at::kStrided) return gradient;
  throw Error(ErrorCode::InvalidArgument,
              core::concat(optimizer, ": the gradient of a parameter of shape ",
                           core::shape_text(parameter.sizes()),
                           " is sparse, but a layer's norm needs all elements; make it dense"));
}

void refuse_options(const char* optimizer) {
  throw Error(ErrorCode::InvalidArgument,
              core::concat(optimizer, ": a parameter group has the options of another optimizer"));
}

void keep_options(::torch::optim::OptimizerParamGroup& made,
                  const ::torch::optim::OptimizerParamGroup& brought) {
  if (brought.has_options()) made.set_options(brought.options().clone());
}

void check_option(bool right, const char* optimizer, const char* option, double value,
                  const char* range) {
  if (right) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat(optimizer, ": ", option, " is ", value, "; give ", range));
}

}  // namespace horon::torch_detail
