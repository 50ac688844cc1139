#include "horon/core/execution/neutral.h"

#include <cstring>
#include <limits>
#include <type_traits>

namespace horon::core {
namespace {

template <class T>
T neutral(ReduceOp op) {
  using Limits = std::numeric_limits<T>;
  if (op == ReduceOp::Product) return T{1};
  if (op == ReduceOp::Min) return Limits::has_infinity ? Limits::infinity() : Limits::max();
  if (op == ReduceOp::Max) return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::BitAnd) return static_cast<T>(-1);  // all bits; of bool: true
  }
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

template <class T>
uint64_t repeat(T value) {
  uint64_t pattern = 0;
  for (size_t at = 0; at < sizeof(pattern); at += sizeof(T)) {
    std::memcpy(reinterpret_cast<std::byte*>(&pattern) + at, &value, sizeof(T));
  }
  return pattern;
}

}  // namespace

uint64_t neutral_pattern(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::Float32:
      return repeat(neutral<float>(op));
    case DataType::Float64:
      return repeat(neutral<double>(op));
    case DataType::Float16:
      return repeat(neutral_half(op, 0x3c00, 0x7c00));
    case DataType::BFloat16:
      return repeat(neutral_half(op, 0x3f80, 0x7f80));
    case DataType::Int8:
      return repeat(neutral<int8_t>(op));
    case DataType::UInt8:
      return repeat(neutral<uint8_t>(op));
    case DataType::Int16:
      return repeat(neutral<int16_t>(op));
    case DataType::Int32:
      return repeat(neutral<int32_t>(op));
    case DataType::Int64:
      return repeat(neutral<int64_t>(op));
    case DataType::Bool:
      return repeat(static_cast<uint8_t>(neutral<bool>(op)));
  }
  return 0;
}

void fill(std::span<std::byte> memory, uint64_t pattern) {
  std::byte* to = memory.data();
  size_t left = memory.size();
  for (; left >= sizeof(pattern); to += sizeof(pattern), left -= sizeof(pattern)) {
    std::memcpy(to, &pattern, sizeof(pattern));
  }
  if (left > 0) std::memcpy(to, &pattern, left);
}

}  // namespace horon::core
