// Conversions between bfloat16, the upper 16 bits of a float, and float, one number at a time: what
// Horon's kernels, which convert vectors, must give. They round to nearest even. A NaN becomes a
// quiet NaN.
#pragma once

#include <cstdint>

namespace horon::ops {

inline float float_from_bfloat16(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

inline uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace horon::ops
