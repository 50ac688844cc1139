// What the tests of the modules share: one process that has the samples of all ranks is the oracle.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"

namespace horon::testing_support {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Some ranks have none.
inline int64_t samples_of(int rank) {
  return std::array<int64_t, 4>{3, 0, 2, 5}[static_cast<size_t>(rank) % 4];
}
inline int64_t samples_before(int rank) {
  int64_t count = 0;
  for (int r = 0; r < rank; ++r) count += samples_of(r);
  return count;
}
inline int64_t all_samples() { return samples_before(size()); }

// This rank's part of what one process would have.
inline at::Tensor my_part(const at::Tensor& whole) {
  return whole.narrow(0, samples_before(rank()), samples_of(rank()));
}

// The same numbers on every rank, without touching LibTorch's generator.
inline at::Tensor numbers(const std::vector<int64_t>& shape, double seed,
                          at::ScalarType type = at::kDouble) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const at::Tensor steps = at::arange(count, at::kDouble) + 1;
  return (steps * (12.9898 + seed)).sin().mul(43.7).frac().mul(3).to(type).reshape(shape);
}

inline void expect_near(const at::Tensor& got, const at::Tensor& want, double tolerance) {
  ASSERT_TRUE(got.defined() && want.defined());
  ASSERT_EQ(got.sizes(), want.sizes());
  EXPECT_TRUE(at::allclose(got.to(at::kDouble), want.to(at::kDouble), tolerance, tolerance))
      << "got\n"
      << got << "\nwant\n"
      << want;
}

inline void expect_same_bits(const at::Tensor& got, const at::Tensor& want) {
  ASSERT_TRUE(got.defined() && want.defined());
  EXPECT_TRUE(at::equal(got, want)) << "got\n" << got << "\nwant\n" << want;
}

}  // namespace horon::testing_support
