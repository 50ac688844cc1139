#include "horon/ops/adasum/adasum_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "horon/core/base/error.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::ops {
namespace {

// So many sums side by side let the compiler use vectors: it may not reorder additions by itself.
constexpr int64_t kLanes = 8;
// The root of the least normal double. Only a zero vector of float32 is below it.
constexpr double kLeastSquare = 1.5e-154;
// Elements of 16-bit floats that are widened at a time, into a buffer on the stack.
constexpr int64_t kWidened = 1024;

template <class T>
T load(const std::byte* from, int64_t index) {
  T value;
  std::memcpy(&value, from + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

template <class T>
AdasumProducts products(const std::byte* a, const std::byte* b, int64_t count) {
  std::array<double, kLanes> ab{}, aa{}, bb{};
  const auto add = [&](int64_t index, size_t lane) {
    const auto x = static_cast<double>(load<T>(a, index));
    const auto y = static_cast<double>(load<T>(b, index));
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  int64_t index = 0;
  for (; index + kLanes <= count; index += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) add(index + lane, static_cast<size_t>(lane));
  }
  for (; index < count; ++index) add(index, 0);
  AdasumProducts sums;
  for (size_t lane = 0; lane < kLanes; ++lane) {
    sums += {ab[lane], aa[lane], bb[lane]};
  }
  return sums;
}

template <class T, class Factor>
void combine_by(const AdasumFactors& factors, const std::byte* a, const std::byte* b, std::byte* to,
                int64_t count) {
  const auto of_a = static_cast<Factor>(factors.a);
  const auto of_b = static_cast<Factor>(factors.b);
  for (int64_t index = 0; index < count; ++index) {
    const auto x = static_cast<Factor>(load<T>(a, index));
    const auto y = static_cast<Factor>(load<T>(b, index));
    const auto sum = static_cast<T>(of_a * x + of_b * y);
    std::memcpy(to + static_cast<size_t>(index) * sizeof(T), &sum, sizeof(T));
  }
}

// The factor of a vector much shorter than the other may exceed the range of float, and so may the
// product of a factor above 1 and a large element.
void combine_floats(const AdasumFactors& factors, const std::byte* a, const std::byte* b,
                    std::byte* to, int64_t count) {
  constexpr double most = std::numeric_limits<float>::max();
  const bool fit = std::abs(factors.a) < most && std::abs(factors.b) < most && factors.most < most;
  if (fit) return combine_by<float, float>(factors, a, b, to, count);
  combine_by<float, double>(factors, a, b, to, count);
}

const std::byte* bytes_of(const std::array<float, kWidened>& numbers) {
  return reinterpret_cast<const std::byte*>(numbers.data());
}

// Calls visit(first element, number of elements, elements of a, elements of b) for stretches of
// 16-bit floats, widened to float.
template <class Visit>
void for_each_widened(DataType dtype, const std::byte* a, const std::byte* b, int64_t count,
                      const Visit& visit) {
  const size_t size = size_of(dtype);
  std::array<float, kWidened> wide_a;
  std::array<float, kWidened> wide_b;
  for (int64_t begin = 0; begin < count; begin += kWidened) {
    const int64_t some = std::min(kWidened, count - begin);
    widen(dtype, a + static_cast<size_t>(begin) * size, wide_a.data(), some, 1.0);
    widen(dtype, b + static_cast<size_t>(begin) * size, wide_b.data(), some, 1.0);
    visit(begin, some, bytes_of(wide_a), bytes_of(wide_b));
  }
}

}  // namespace

AdasumFactors adasum_factors(const AdasumProducts& products) {
  AdasumFactors factors;
  // Not >=, so that NaN stays NaN.
  if (!(products.aa < kLeastSquare)) factors.a = 1 - products.ab / (2 * products.aa);
  if (!(products.bb < kLeastSquare)) factors.b = 1 - products.ab / (2 * products.bb);
  factors.most = std::max(std::abs(factors.a) * std::sqrt(products.aa),
                          std::abs(factors.b) * std::sqrt(products.bb));
  return factors;
}

AdasumProducts adasum_products(DataType dtype, const std::byte* a, const std::byte* b,
                               int64_t count) {
  HORON_CHECK(is_floating(dtype), "Adasum is for floating types");
  if (dtype == DataType::Float32) return products<float>(a, b, count);
  if (dtype == DataType::Float64) return products<double>(a, b, count);
  AdasumProducts sums;
  for_each_widened(dtype, a, b, count,
                   [&](int64_t /*begin*/, int64_t some, const std::byte* wide_a,
                       const std::byte* wide_b) { sums += products<float>(wide_a, wide_b, some); });
  return sums;
}

void adasum_combine(DataType dtype, const AdasumFactors& factors, const std::byte* a,
                    const std::byte* b, std::byte* to, int64_t count) {
  HORON_CHECK(is_floating(dtype), "Adasum is for floating types");
  if (dtype == DataType::Float32) return combine_floats(factors, a, b, to, count);
  if (dtype == DataType::Float64) return combine_by<double, double>(factors, a, b, to, count);
  std::array<float, kWidened> sum;
  for_each_widened(
      dtype, a, b, count,
      [&](int64_t begin, int64_t some, const std::byte* wide_a, const std::byte* wide_b) {
        combine_floats(factors, wide_a, wide_b, reinterpret_cast<std::byte*>(sum.data()), some);
        narrow(dtype, sum.data(), to + static_cast<size_t>(begin) * size_of(dtype), some, 1.0);
      });
}

}  // namespace horon::ops
