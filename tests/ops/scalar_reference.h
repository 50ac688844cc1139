// Elements of every type as numbers, and what a reduction of them must give, one element at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"
#include "horon/ops/host/half.h"
#include "horon/ops/host/host_kernels.h"

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

template <class T>
T reduce_numbers(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return a + b;
    case ReduceOp::Product:
      return a * b;
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
      if constexpr (std::is_integral_v<T>) {
        if (op == ReduceOp::BitXor) return a ^ b;
        return op == ReduceOp::BitAnd ? a & b : a | b;
      }
      break;
    case ReduceOp::Min:
    case ReduceOp::Max:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::nan("");
    if (a == b && std::signbit(a) != std::signbit(b)) return op == ReduceOp::Min ? T{-0.0} : T{0.0};
  }
  return (op == ReduceOp::Min) == (b < a) ? b : a;
}

// One floating element: `values` in rank order, in the type that is reduced.
template <class T>
T reduce_floats(const Reduction& r, const std::vector<T>& values) {
  T result = static_cast<T>(r.prescale) * values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const T scaled = static_cast<T>(r.prescale) * values[i];
    result = reduce_numbers(r.op, result, scaled);
  }
  return result * static_cast<T>(r.postscale / static_cast<double>(r.divisor));
}

inline int64_t reduce_integers(const Reduction& r, const std::vector<int64_t>& values) {
  if (r.dtype == DataType::Bool && !is_bitwise(r.op)) {
    const bool is_or = r.op == ReduceOp::Sum || r.op == ReduceOp::Max;
    const auto set = [](int64_t value) { return value != 0; };
    return is_or ? std::any_of(values.begin(), values.end(), set)
                 : std::all_of(values.begin(), values.end(), set);
  }
  if (r.op == ReduceOp::Min) return *std::min_element(values.begin(), values.end());
  if (r.op == ReduceOp::Max) return *std::max_element(values.begin(), values.end());
  uint64_t result = static_cast<uint64_t>(values[0]);  // wraps, as the kernels do
  for (size_t i = 1; i < values.size(); ++i) {
    result = reduce_numbers(r.op, result, static_cast<uint64_t>(values[i]));
  }
  const auto number = static_cast<int64_t>(result);
  return r.op == ReduceOp::Average ? number / r.divisor : number;
}

// The whole result. `inputs[rank]` holds `count` elements.
inline std::vector<std::byte> reference(const Reduction& r,
                                        const std::vector<const std::byte*>& inputs,
                                        int64_t count) {
  std::vector<std::byte> result(static_cast<size_t>(count) * size_of(r.dtype));
  visit_type(r.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> elements(inputs.size());
    std::vector<float> floats(inputs.size());
    std::vector<int64_t> integers(inputs.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = i * static_cast<int64_t>(sizeof(T));
      for (size_t k = 0; k < inputs.size(); ++k) {
        std::memcpy(&elements[k], inputs[k] + offset, sizeof(T));
      }
      T element;
      if constexpr (std::is_floating_point_v<T>) {
        element = reduce_floats(r, elements);
      } else if (is_floating(r.dtype)) {
        for (size_t k = 0; k < inputs.size(); ++k) {
          floats[k] = float_from_16(r.dtype, static_cast<uint16_t>(elements[k]));
        }
        element = static_cast<T>(float_to_16(r.dtype, reduce_floats(r, floats)));
      } else {
        std::copy(elements.begin(), elements.end(), integers.begin());
        element = static_cast<T>(reduce_integers(r, integers));
      }
      std::memcpy(result.data() + offset, &element, sizeof(T));
    }
  });
  return result;
}

// What blocks of int8 make of these: each a multiple of its block's step, to the nearest.
inline void round_in_int8_blocks(std::vector<float>& values) {
  constexpr auto kBlock = static_cast<size_t>(kInt8BlockElements);
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t end = std::min(values.size(), begin + kBlock);
    float largest = 0;
    bool finite = true;
    for (size_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::abs(values[i]));
    }
    const bool has_step = largest >= 0x1p-112F;
    for (size_t i = begin; i < end; ++i) {
      if (!finite) {
        values[i] = std::nanf("");
      } else if (!has_step) {
        values[i] = 0;
      } else {
        const auto steps = static_cast<int8_t>(std::nearbyint(values[i] * (127.0F / largest)));
        values[i] = static_cast<float>(steps) * (largest / 127.0F);
      }
    }
  }
}

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

}  // namespace horon::ops
