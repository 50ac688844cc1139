// What horon_target() says about floating point holds in a program that is built with -ffast-math
// (CMake puts it before the options of horon_target() for this file).
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(FastMath, SeesWhatIsNotFinite) {
  volatile double nan = std::numeric_limits<double>::quiet_NaN();  // not known to the compiler
  volatile double infinity = std::numeric_limits<double>::infinity();
  const double value = nan;
  EXPECT_TRUE(std::isnan(value));
  EXPECT_TRUE(value != value);
  EXPECT_FALSE(std::isfinite(value));
  EXPECT_FALSE(std::isfinite(static_cast<double>(infinity)));
  EXPECT_TRUE(std::isinf(static_cast<double>(infinity)));
}

TEST(FastMath, SumsInTheOrderThatIsWritten) {
  volatile float given = 1e10F;
  const float large = given;
  EXPECT_EQ(1 + large - large, 0);
}

}  // namespace
}  // namespace horon::core
