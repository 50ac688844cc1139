#include "horon/torch_bindings/gradients/sampled_numbers.h"

#include <cmath>

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace horon::torch_detail {

double real_number(const at::Tensor& tensor, int64_t index) {
  const void* const data = tensor.const_data_ptr();
  double value = 0;
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kFloat:
      value = static_cast<const float*>(data)[index];
      break;
    case at::kDouble:
      value = static_cast<const double*>(data)[index];
      break;
    case at::kHalf:
      value = static_cast<const c10::Half*>(data)[index];
      break;
    case at::kBFloat16:
      value = static_cast<const c10::BFloat16*>(data)[index];
      break;
    default:
      break;
  }
  return std::isfinite(value) ? value : kNotFinite;
}

}  // namespace horon::torch_detail
