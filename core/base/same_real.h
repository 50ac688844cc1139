// When two numbers that programs choose, as scales, are the same.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace horon::core {

// As their texts are: NaN agrees with itself, and 0 does not agree with -0.
inline bool same_real(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace horon::core
