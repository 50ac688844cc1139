#include "horon/core/execution/neutral.h"

#include <cstring>
#include <limits>

namespace horon::core {
namespace {

template <class T>
void fill(std::span<std::byte> memory, T value) {
  for (size_t at = 0; at < memory.size(); at += sizeof(T)) {
    std::memcpy(memory.data() + at, &value, sizeof(T));
  }
}

template <class T>
T neutral(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  if (op == ReduceOp::Product) return T{1};
  if (op == ReduceOp::Min) return Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::Max) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  return T{0};
}

// 16-bit floats by their bits: 1 and infinity.
uint16_t neutral_half(ReduceOp op, uint16_t one, uint16_t infinity) {
  constexpr uint16_t sign = 0x8000;
  if (op == ReduceOp::Product) return one;
  if (op == ReduceOp::Min) return infinity;
  if (op == ReduceOp::Max) return infinity | sign;
  return 0;
}

}  // namespace

void fill_neutral(std::span<std::byte> memory, DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::Float32:
      return fill(memory, neutral<float>(op));
    case DataType::Float64:
      return fill(memory, neutral<double>(op));
    case DataType::Float16:
      return fill(memory, neutral_half(op, 0x3c00, 0x7c00));
    case DataType::BFloat16:
      return fill(memory, neutral_half(op, 0x3f80, 0x7f80));
    case DataType::Int8:
      return fill(memory, neutral<int8_t>(op));
    case DataType::UInt8:
      return fill(memory, neutral<uint8_t>(op));
    case DataType::Int16:
      return fill(memory, neutral<int16_t>(op));
    case DataType::Int32:
      return fill(memory, neutral<int32_t>(op));
    case DataType::Int64:
      return fill(memory, neutral<int64_t>(op));
    case DataType::Bool:
      return fill(memory, static_cast<uint8_t>(neutral<bool>(op)));
  }
}

}  // namespace horon::core
