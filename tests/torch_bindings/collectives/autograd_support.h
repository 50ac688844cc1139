// What the tests of the differentiable collectives share.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "horon/tests/torch_bindings/collectives/collective_values.h"

namespace horon::testing_support {

// Numbers that differ from element to element and from rank to rank, none of them 0.
inline at::Tensor values(const std::vector<int64_t>& shape, double r,
                         at::ScalarType type = at::kDouble) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const at::Tensor real = (at::arange(count, at::kDouble) * 0.7 + 1.3 * r + 0.4).sin();
  if (type == at::kComplexDouble) return at::complex(real, real.cos()).reshape(shape);
  return real.to(type).reshape(shape);
}

// Derivatives in doubles are right to the last digits.
inline void expect_close(const at::Tensor& got, const at::Tensor& want) {
  expect_equal(got, want, 1e-12);
}

}  // namespace horon::testing_support
