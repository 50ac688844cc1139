#include "horon/bench/statistics.h"

#include <gtest/gtest.h>

namespace horon::bench {
namespace {

TEST(Statistics, MedianOfOddAndEvenNumbers) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
}

TEST(Statistics, PercentilesAreSamples) {
  std::vector<double> samples;
  for (int i = 100; i > 0; --i) samples.push_back(i);
  EXPECT_EQ(percentile(samples, 99), 99);
  EXPECT_EQ(percentile(samples, 50), 50);
  EXPECT_EQ(percentile(samples, 100), 100);
  EXPECT_EQ(percentile(samples, 0), 1);
  EXPECT_EQ(percentile({7}, 99), 7);
}

// The expected values are those of Python's statistics.quantiles(..., n=4, method="inclusive").
TEST(Statistics, QuartilesAreInterpolated) {
  const auto expect = [](const Quartiles& found, double lower, double middle, double upper) {
    EXPECT_DOUBLE_EQ(found.lower, lower);
    EXPECT_DOUBLE_EQ(found.median, middle);
    EXPECT_DOUBLE_EQ(found.upper, upper);
  };
  expect(quartiles({5}), 5, 5, 5);
  expect(quartiles({2, 1}), 1.25, 1.5, 1.75);
  expect(quartiles({3, 1, 2}), 1.5, 2, 2.5);
  expect(quartiles({8, 1, 4, 2, 16}), 2, 4, 8);
  expect(quartiles({6, 5, 4, 3, 2, 1}), 2.25, 3.5, 4.75);
}

}  // namespace
}  // namespace horon::bench
