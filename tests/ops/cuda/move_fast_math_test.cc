// The finite check of the kernels, compiled by a compiler that was told that all numbers are finite
// (CMake does so for this file): programs build Horon with -ffast-math.
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#define HORON_DEVICE_FUNCTION
#include "horon/ops/cuda/move_body.inc"

namespace horon::ops {
namespace {

template <class T>
bool finite(T given) {
  volatile T value = given;  // not known to the compiler
  return move_body::is_finite(static_cast<T>(value));
}

TEST(MoveFastMath, SeesWhatIsNotFinite) {
  EXPECT_FALSE(finite(std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(finite(-std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(finite(std::numeric_limits<float>::quiet_NaN()));
  EXPECT_FALSE(finite(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_TRUE(finite(std::numeric_limits<float>::max()));
  EXPECT_TRUE(finite(std::numeric_limits<double>::lowest()));
  EXPECT_TRUE(finite(0.0F));
}

}  // namespace
}  // namespace horon::ops
