// NaNs as NCCL treats them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "horon/core/base/dtype.h"
#include "horon/ops/host/half.h"
#include "horon/tests/support/bfloat16.h"

namespace horon::test {

template <class T, class IsNan>
void replace_nans_of(std::byte* inputs, size_t ranks, size_t count, const IsNan& is_nan) {
  auto* const values = reinterpret_cast<T*>(inputs);
  for (size_t i = 0; i < count; ++i) {
    const auto number = [&] {
      for (size_t rank = 0; rank < ranks; ++rank) {
        if (!is_nan(values[rank * count + i])) return values[rank * count + i];
      }
      return values[i];
    }();
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (is_nan(values[rank * count + i])) values[rank * count + i] = number;
    }
  }
}

// In NCCL's Min and Max a number wins over a NaN; in Horon's own ops a NaN wins. Replaces each NaN
// by a number that another rank has at the same place, if there is one. `inputs`: those of all
// ranks, one after the other.
inline void replace_nans(DataType dtype, std::byte* inputs, size_t ranks, size_t count) {
  switch (dtype) {
    case DataType::Float32:
      return replace_nans_of<float>(inputs, ranks, count, [](float v) { return std::isnan(v); });
    case DataType::Float64:
      return replace_nans_of<double>(inputs, ranks, count, [](double v) { return std::isnan(v); });
    case DataType::Float16:
      return replace_nans_of<uint16_t>(inputs, ranks, count, [](uint16_t bits) {
        return std::isnan(ops::float_from_half(bits));
      });
    case DataType::BFloat16:
      return replace_nans_of<uint16_t>(inputs, ranks, count, [](uint16_t bits) {
        return std::isnan(ops::float_from_bfloat16(bits));
      });
    default:
      return;
  }
}

}  // namespace horon::test
