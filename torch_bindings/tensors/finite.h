// Finds NaN and Inf before a reduction spreads them to all ranks.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "horon/core/base/error.h"

namespace horon::torch_detail {

// Dense and floating; any shape.
bool all_finite(const at::Tensor& values);
// The error for values of this rank that are not finite. `what` names them, `cure` ends the text.
Error not_finite(const std::string& what, const at::Tensor& values, const std::string& cure);
Error gradient_not_finite(const std::string& parameter, const at::Tensor& values);

}  // namespace horon::torch_detail
