// Inputs of collective tests that every rank can work out for every rank, and comparisons.
#pragma once

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "horon/torch_bindings/session.h"

namespace horon::testing_support {

inline const std::vector<at::ScalarType> kTensorTypes{
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,          at::kByte,
    at::kShort, at::kInt,    at::kLong, at::kBool,     at::kComplexDouble, at::kComplexFloat};

// What rank `r` puts in: small integers, also negative ones where the type has them, so that sums
// are exact.
inline at::Tensor values_of(const std::vector<int64_t>& shape, at::ScalarType type, int r) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const at::Tensor pattern = (at::arange(count, at::kLong) * 5 + 3 * r).remainder(7);
  if (type == at::kBool) return pattern.gt(2).reshape(shape);
  const at::Tensor real = type == at::kByte ? pattern : pattern - 3;
  if (!at::isComplexType(type)) return real.to(type).reshape(shape);
  return at::complex(real.to(at::kDouble), (pattern - 1).to(at::kDouble)).to(type).reshape(shape);
}

// The oracle is one process: the sum over all ranks.
inline at::Tensor sum_of_all(const std::vector<int64_t>& shape, at::ScalarType type) {
  at::Tensor sum = values_of(shape, type, 0);
  for (int r = 1; r < size(); ++r) {
    sum = type == at::kBool ? sum.logical_or(values_of(shape, type, r))
                            : sum + values_of(shape, type, r);
  }
  return sum;
}

inline void expect_equal(const at::Tensor& got, const at::Tensor& want, double tolerance = 0) {
  ASSERT_EQ(got.scalar_type(), want.scalar_type());
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_TRUE(tolerance == 0 ? at::equal(got, want) : at::allclose(got, want, tolerance, tolerance))
      << "got\n"
      << got << "\nwant\n"
      << want;
}

}  // namespace horon::testing_support
