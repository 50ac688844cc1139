#include "horon/core/runtime/look_round.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

constexpr Nanos kMillisecond = 1'000'000;

TEST(LookRound, AllHaveTheirTurnAtFirstAndAfterARest) {
  LookRound round;
  Nanos now = 17;
  EXPECT_EQ(round.due(100, now), 100U);
  EXPECT_EQ(round.due(100, now), 0U);
  EXPECT_EQ(round.due(100, now += 250 * kMillisecond), 100U);
  EXPECT_EQ(round.due(0, now += 250 * kMillisecond), 0U);
}

// However often the round is asked.
TEST(LookRound, EachHasItsTurnOncePerRound) {
  for (const size_t count : {1, 3, 100, 5000}) {
    for (const Nanos step : {7'001, 1'000'003, 60'000'000}) {
      LookRound round;
      Nanos now = 0;
      (void)round.due(count, now);
      size_t looks = 0;
      size_t most = 0;
      while (now < 10 * LookRound::kLength) {
        const size_t due = round.due(count, now += step);
        most = std::max(most, due);
        looks += due;
      }
      // The step in which a round ends may be too long for it.
      const auto all = static_cast<Nanos>(count);
      EXPECT_GE(static_cast<Nanos>(looks), now / (LookRound::kLength + step) * all);
      EXPECT_LE(static_cast<Nanos>(looks), (now / LookRound::kLength + 1) * all);
      EXPECT_LE(most, count * static_cast<size_t>(step) / LookRound::kLength + 2)
          << count << " things, every " << step << " ns";
    }
  }
}

// A turn that has something else to do looks at a few; the others get their turn soon.
TEST(LookRound, AFewInHaste) {
  LookRound round;
  Nanos now = 0;
  (void)round.due(1000, now);
  now += LookRound::kLength;
  size_t looks = 0;
  size_t turns = 0;
  for (; looks < 1000; ++turns) {
    const size_t due = round.due(1000, now += 1000, /*in_haste=*/true);
    ASSERT_LE(due, 8U);
    ASSERT_GT(due, 0U);
    looks += due;
  }
  EXPECT_EQ(turns, 125U);
  EXPECT_EQ(round.due(1000, now += 2 * LookRound::kLength, /*in_haste=*/true), 1000U);
}

}  // namespace
}  // namespace horon::core
