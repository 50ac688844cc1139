// A few numbers of a tensor in host memory, by which it is compared with that of other ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// Stands for NaN and Inf, which are alike on all ranks or not, as other values are.
inline constexpr double kNotFinite = 1e300;

// 2 for complex numbers.
inline int64_t reals_of_each(const at::Tensor& tensor) { return tensor.is_complex() ? 2 : 1; }

// Floating and complex dtypes; 0 for others.
double real_number(const at::Tensor& tensor, int64_t index);

// Calls visit(index of a real number) for `count` numbers that lie evenly, or all if there are
// fewer. The tensor has elements.
template <class Visit>
void for_each_spread(const at::Tensor& tensor, size_t count, uint64_t first, const Visit& visit) {
  const auto numbers = static_cast<uint64_t>(tensor.numel() * reals_of_each(tensor));
  // In a tensor with gaps or overlaps only index 0 is an element for certain.
  if (!tensor.is_non_overlapping_and_dense()) return visit(int64_t{0});
  const uint64_t visited = std::min<uint64_t>(count, numbers);
  const uint64_t distance = numbers / visited;
  for (uint64_t i = 0; i < visited; ++i) {
    visit(static_cast<int64_t>((first + i * distance) % numbers));
  }
}

}  // namespace horon::torch_detail
