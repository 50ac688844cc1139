// NaN and Inf in what is to be reduced, found before they spread to all ranks.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "horon/core/base/error.h"

namespace horon::torch_detail {

// Dense and floating; any shape.
bool all_finite(const at::Tensor& values);
// What is wrong with such values of this rank, which the error calls `what`; `cure` ends its text.
Error not_finite(const std::string& what, const at::Tensor& values, const std::string& cure);
Error gradient_not_finite(const std::string& parameter, const at::Tensor& values);

}  // namespace horon::torch_detail
