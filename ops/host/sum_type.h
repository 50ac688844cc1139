// The type in which the elements of a reduction are added.
#pragma once

#include "horon/core/base/narrow_type.h"

namespace horon::ops {

// Between the first input and the result nothing is rounded to 16 bits, and averages of integers
// do not overflow before they are divided.
inline DataType sum_type(DataType dtype, ReduceOp op) {
  if (core::is_16_bit_float(dtype)) return DataType::Float32;
  if (op == ReduceOp::Average && !is_floating(dtype)) return DataType::Int64;
  return dtype;
}

}  // namespace horon::ops
