#include "horon/torch_bindings/tensors/finite.h"

#include <cmath>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/sum.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {

bool all_finite(const at::Tensor& values) {
  if (values.is_complex()) return all_finite(real_memory(values));
  // A sum over a NaN or an Inf is not finite. A sum of finite values may overflow as well, so only
  // then each element is looked at.
  if (std::isfinite(at::sum(values).item<double>())) return true;
  return at::isfinite(values).all().item<bool>();
}

Error not_finite(const std::string& what, const at::Tensor& values, const std::string& cure) {
  const int64_t nans = at::isnan(values).sum().item<int64_t>();
  const int64_t finite = at::isfinite(values).sum().item<int64_t>();
  return Error(ErrorCode::InvalidArgument,
               core::concat(what, " on rank ", rank(), " holds ", nans, " NaN and ",
                            values.numel() - finite - nans, " Inf in ", values.numel(),
                            " elements; ", cure));
}

Error gradient_not_finite(const std::string& parameter, const at::Tensor& values) {
  return not_finite(core::concat("gradient of \"", parameter, "\""), values,
                    "the step is not taken: call zero_grad() and go on, and lower the learning "
                    "rate or the loss scale");
}

}  // namespace horon::torch_detail
