#include "horon/torch_bindings/gradients/orthonormal_columns.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace horon::orthonormal_columns_test {
namespace {

constexpr int64_t kRows = 50;

// The products of all pairs of columns.
template <class T>
std::vector<double> products(const std::vector<T>& values, int64_t columns) {
  std::vector<double> result;
  for (int64_t a = 0; a < columns; ++a) {
    for (int64_t b = 0; b <= a; ++b) {
      double sum = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        sum += static_cast<double>(values[static_cast<size_t>(row * columns + a)]) *
               static_cast<double>(values[static_cast<size_t>(row * columns + b)]);
      }
      result.push_back(sum);
    }
  }
  return result;
}

// All columns are orthogonal, and as long as 1; those that may be zero are so, or as long as 1.
template <class T>
void check(const std::vector<bool>& may_be_zero, double scale, auto value) {
  const auto columns = static_cast<int64_t>(may_be_zero.size());
  std::vector<T> values;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      values.push_back(static_cast<T>(scale * value(row, column)));
    }
  }
  torch_detail::orthonormalize_columns(values.data(), kRows, columns);
  const std::vector<double> got = products(values, columns);
  size_t at = 0;
  for (size_t a = 0; a < may_be_zero.size(); ++a) {
    for (size_t b = 0; b <= a; ++b) {
      const double product = got[at++];
      if (a == b && may_be_zero[a] && product == 0) continue;
      EXPECT_NEAR(product, a == b ? 1 : 0, 1e-5)
          << "columns " << a << " and " << b << ", times " << scale;
    }
  }
}

template <class T>
class OrthonormalColumns : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(OrthonormalColumns, Types);

TYPED_TEST(OrthonormalColumns, OfIndependentOnes) {
  for (const double scale : {1e-9, 1.0, 1e9}) {
    check<TypeParam>({false, false, false}, scale, [](int64_t row, int64_t column) {
      return std::sin(static_cast<double>(row * (column + 1))) + 2;
    });
  }
}

TYPED_TEST(OrthonormalColumns, OfOnesThatDependOnEarlierOnes) {
  for (const double scale : {1e-9, 1.0, 1e9}) {
    check<TypeParam>({false, true, false, true}, scale, [](int64_t row, int64_t column) {
      const auto place = static_cast<double>(row);
      const double first = std::sin(place) + 2, third = std::cos(place);
      return column == 0 ? first : column == 1 ? 0.3 * first : column == 2 ? third : first - third;
    });
  }
}

// What is left of the later ones is alike in all rows too: it lies along the first.
TYPED_TEST(OrthonormalColumns, OfOnesWithEqualRows) {
  for (const double factor : {0.1, 0.3, 0.7, 1.7, 3.3}) {
    check<TypeParam>({false, true, true}, 1, [factor](int64_t, int64_t column) {
      return column == 0 ? 1.0 : column == 1 ? factor : factor / 3;
    });
  }
}

TYPED_TEST(OrthonormalColumns, OfZeros) {
  check<TypeParam>({true, false}, 1, [](int64_t row, int64_t column) {
    return column == 0 ? 0 : std::sin(static_cast<double>(row));
  });
}

}  // namespace
}  // namespace horon::orthonormal_columns_test
