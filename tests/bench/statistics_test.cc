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

}  // namespace
}  // namespace horon::bench
