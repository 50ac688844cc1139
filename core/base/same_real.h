// Whether two numbers that programs choose, such as scales, are the same.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace horon::core {

// Compares them as their texts: NaN equals itself, and 0 differs from -0.
inline bool same_real(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace horon::core
