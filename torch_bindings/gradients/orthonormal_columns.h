// An orthonormal basis of the columns of a matrix, in its place.
#pragma once

#include <cmath>
#include <cstdint>

namespace horon::torch_detail {

// Gram-Schmidt, each column twice, so that rounding leaves no part of earlier columns in it. A
// column of zeros stays zero. Of one that depends on the earlier ones rounding leaves a direction
// as good as any other, or, if that lies along the earlier ones too, zero.
template <class T>
void orthonormalize_columns(T* values, int64_t rows, int64_t columns) {
  const auto product = [=](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t i = 0; i < rows * columns; i += columns) {
      sum += static_cast<double>(values[i + a]) * static_cast<double>(values[i + b]);
    }
    return sum;
  };
  for (int64_t c = 0; c < columns; ++c) {
    double left = 0;  // by the first time
    for (int64_t before = 0; before < 2 * c; ++before) {
      if (before == c) left = std::sqrt(product(c, c));
      const double share = product(c, before % c);
      for (int64_t i = 0; i < rows * columns; i += columns) {
        values[i + c] -= static_cast<T>(share * static_cast<double>(values[i + before % c]));
      }
    }
    const double length = std::sqrt(product(c, c));
    // If the second time takes nearly all of it, it was rounding along the earlier columns.
    const bool is_nothing = length <= left / 10;
    for (int64_t i = 0; i < rows * columns && length != 0; i += columns) {
      const double value = is_nothing ? 0 : static_cast<double>(values[i + c]) / length;
      values[i + c] = static_cast<T>(value);
    }
  }
}

}  // namespace horon::torch_detail
