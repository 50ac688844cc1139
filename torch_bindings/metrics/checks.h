// Small things that all metrics use.
#pragma once

#include <limits>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::metrics {

// Throws Error(InvalidArgument) where the condition does not hold.
inline void require(bool condition, std::string_view metric, std::string_view what) {
  if (!condition) throw Error(ErrorCode::InvalidArgument, core::concat(metric, ": ", what));
}

inline at::Tensor number(double value) { return at::full({}, value, at::kDouble); }
inline at::Tensor not_a_number() { return number(std::numeric_limits<double>::quiet_NaN()); }

}  // namespace horon::metrics
