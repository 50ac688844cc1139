#include "horon/ops/hierarchical/wire_type.h"

#include "horon/core/base/narrow_type.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/sum_type.h"

namespace horon::ops {

static_assert(WireType::kAlignment % kInt8BlockElements == 0);

bool is_exact(int64_t count) {
  return count <= kExactBytesMax / static_cast<int64_t>(sizeof(float));
}

int64_t WireType::bytes(int64_t elements) const {
  if (in_blocks_) return bytes_of_int8_blocks(elements);
  return elements * static_cast<int64_t>(size_of(dtype_));
}

int64_t WireType::elements_in(int64_t bytes) const {
  if (!in_blocks_) return bytes / static_cast<int64_t>(size_of(dtype_));
  return bytes / bytes_of_int8_blocks(kAlignment) * kAlignment;
}

std::string_view WireType::name() const { return in_blocks_ ? "int8 blocks" : to_string(dtype_); }

bool WireType::narrows(DataType dtype) const {
  return dtype == DataType::Float32 && (in_blocks_ || core::is_16_bit_float(dtype_));
}

void WireType::narrow(const float* from, std::byte* to, int64_t count, double factor) const {
  if (in_blocks_) return narrow_to_int8_blocks(from, to, count, factor);
  ops::narrow(dtype_, from, to, count, factor);
}

void WireType::widen(const std::byte* from, float* to, int64_t count) const {
  if (in_blocks_) return widen_int8_blocks(from, to, count, 1.0);
  ops::widen(dtype_, from, to, count, 1.0);
}

WireType wire_type_named(std::string_view name) {
  for (const DataType dtype : {DataType::BFloat16, DataType::Float16}) {
    if (name == to_string(dtype)) return dtype;
  }
  return DataType::Float32;
}

WireType choose_wire_type(DataType dtype, ReduceOp op, int64_t count, bool raw, WireType allowed) {
  const bool adds = op == ReduceOp::Sum || op == ReduceOp::Average;
  if (allowed.narrows(dtype) && adds && !is_exact(count)) return allowed;
  return raw ? dtype : sum_type(dtype, op);
}

}  // namespace horon::ops
