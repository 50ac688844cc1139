#include "horon/ops/hierarchical/wire_type.h"

#include "horon/core/base/narrow_type.h"
#include "horon/ops/host/sum_type.h"

namespace horon::ops {

DataType wire_dtype_named(std::string_view name) {
  for (const DataType dtype : {DataType::BFloat16, DataType::Float16}) {
    if (name == to_string(dtype)) return dtype;
  }
  return DataType::Float32;
}

bool is_exact(int64_t count) {
  return count <= kExactBytesMax / static_cast<int64_t>(sizeof(float));
}

bool is_narrowed(DataType dtype, DataType wire_type) {
  return dtype == DataType::Float32 && core::is_16_bit_float(wire_type);
}

DataType choose_wire_type(DataType dtype, ReduceOp op, int64_t count, bool raw,
                          DataType wire_dtype) {
  const bool adds = op == ReduceOp::Sum || op == ReduceOp::Average;
  if (is_narrowed(dtype, wire_dtype) && adds && !is_exact(count)) return wire_dtype;
  return raw ? dtype : sum_type(dtype, op);
}

}  // namespace horon::ops
