// NaN and Inf in gradients, found before they spread to all ranks.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "horon/core/base/error.h"

namespace horon::torch_detail {

// Dense and floating; any shape.
bool all_finite(const at::Tensor& values);
// The error for such a gradient of this rank.
Error not_finite(const std::string& parameter, const at::Tensor& values);

}  // namespace horon::torch_detail
