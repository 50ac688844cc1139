// Elements of every type as numbers, and the expected results of reductions, one element at a time.
// Functions over whole tensors are in the source file, which is compiled without sanitizers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"
#include "horon/ops/host/half.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/tests/support/bfloat16.h"

namespace horon::ops {

inline const std::vector<DataType> kAllTypes = {
    DataType::Float32, DataType::Float64, DataType::Float16, DataType::BFloat16, DataType::Int8,
    DataType::UInt8,   DataType::Int16,   DataType::Int32,   DataType::Int64,    DataType::Bool};
inline const std::vector<ReduceOp> kAllReduceOps = {
    ReduceOp::Sum,     ReduceOp::Average, ReduceOp::Min,   ReduceOp::Max,
    ReduceOp::Product, ReduceOp::BitAnd,  ReduceOp::BitOr, ReduceOp::BitXor};

inline bool exists(DataType dtype, ReduceOp op) {
  if (is_floating(dtype)) return op < ReduceOp::BitAnd;
  return dtype != DataType::Bool || op != ReduceOp::Average;
}

// Calls visit(T{}) with the C++ type that holds an element (uint16_t for the 16-bit floats).
template <class Visit>
void visit_type(DataType dtype, const Visit& visit) {
  switch (dtype) {
    case DataType::Float32:
      return visit(float{});
    case DataType::Float64:
      return visit(double{});
    case DataType::Float16:
    case DataType::BFloat16:
      return visit(uint16_t{});
    case DataType::Int8:
      return visit(int8_t{});
    case DataType::UInt8:
    case DataType::Bool:
      return visit(uint8_t{});
    case DataType::Int16:
      return visit(int16_t{});
    case DataType::Int32:
      return visit(int32_t{});
    case DataType::Int64:
      return visit(int64_t{});
  }
}

inline float float_from_16(DataType dtype, uint16_t bits) {
  return dtype == DataType::Float16 ? float_from_half(bits) : float_from_bfloat16(bits);
}
inline uint16_t float_to_16(DataType dtype, float value) {
  return dtype == DataType::Float16 ? half_from_float(value) : bfloat16_from_float(value);
}

// Writes a small whole number as element `index` of `to`; integers wrap, bools become 0 or 1.
inline void put_number(DataType dtype, std::byte* to, int64_t index, int64_t number) {
  visit_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    T element = static_cast<T>(number);
    if (dtype == DataType::Bool) element = static_cast<T>(number % 2 != 0);
    if (dtype == DataType::Float16 || dtype == DataType::BFloat16) {
      element = static_cast<T>(float_to_16(dtype, static_cast<float>(number)));
    }
    std::memcpy(to + index * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
  });
}

// The whole result of a reduction. `inputs[rank]` holds `count` elements.
std::vector<std::byte> reference(const Reduction& r, const std::vector<const std::byte*>& inputs,
                                 int64_t count);

// Rounds each value to the nearest number of this type, as values that travel in 16 bits are.
void round_to_16(DataType dtype, std::vector<float>& values);

// Rounds each value as blocks of int8 do: to the nearest multiple of its block's step.
void round_in_int8_blocks(std::vector<float>& values);

// Makes all NaNs alike, since a NaN may have any bits.
void make_nans_alike(std::vector<float>& values);

// A fixed pseudo-random number for any three others.
inline uint64_t mix(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 1;
  for (int round = 0; round < 2; ++round) {
    x ^= x >> 31;
    x *= 0x7fb5d329728ea185u;
    x ^= x >> 27;
  }
  return x;
}

// Random whole numbers from `least` to `least` + `kinds` - 1.
struct SmallNumbers {
  int64_t least = 0;
  uint64_t kinds = 1;
};

// The numbers of a rank's input, from element `begin` on.
std::vector<std::byte> random_numbers(const SmallNumbers& of, DataType dtype, uint64_t sequence,
                                      int rank, int64_t begin, int64_t count);

// Numbers of any size up to 500, with digits behind the point.
std::vector<std::byte> random_floats(DataType dtype, int rank, int64_t count);

// The same, but some are infinite, NaN, too large for float16, or too small.
std::vector<float> wild_floats(uint64_t sequence, int rank, int64_t count);

// The same bytes for the same two numbers.
std::vector<std::byte> random_bytes(uint64_t first, uint64_t second, int64_t bytes);

// The hash of any memory.
uint64_t hash_of(std::span<const std::byte> data);

}  // namespace horon::ops
