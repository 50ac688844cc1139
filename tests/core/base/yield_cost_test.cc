#include "horon/core/base/yield_cost.h"

#include <chrono>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

using namespace std::chrono_literals;

int waits_without(YieldCost& cost) {
  int waits = 0;
  while (!cost.worth_trying()) ++waits;
  return waits;
}

TEST(YieldCost, CheapYieldsGoOn) {
  YieldCost cost;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(cost.worth_trying());
    cost.note(20us);
    EXPECT_FALSE(cost.dear());
  }
}

TEST(YieldCost, DearOnesAreTriedEverLessOften) {
  YieldCost cost;
  int before = 0;
  for (int i = 0; i < 20; ++i) {
    cost.note(3ms);
    EXPECT_TRUE(cost.dear());
    const int waits = waits_without(cost);
    EXPECT_TRUE(waits > before || waits == 1024) << waits << " after " << before;
    before = waits;
  }
  EXPECT_EQ(before, 1024);
}

TEST(YieldCost, LooksForItsTimeAndForItsYields) {
  constexpr auto kNever = YieldCost::Clock::time_point::max();
  YieldCost cost;
  const auto times_of = [&](const Look& look, YieldCost::Clock::time_point deadline) {
    int times = 0;
    const auto count = [&times] {
      ++times;
      return false;
    };
    YieldCost fresh;  // dear yields on a busy machine are another test
    EXPECT_FALSE(fresh.look(count, look, deadline));
    return fresh.dear() ? -1 : times;
  };
  EXPECT_EQ(times_of({0, 1s}, kNever), 1);  // a look without a yield
  const auto begin = YieldCost::Clock::now();
  const int of_three = times_of({3, 0s}, kNever);
  EXPECT_TRUE(of_three == 4 || of_three == -1) << of_three << " looks with three yields";
  const int of_a_while = times_of({1, 2ms}, kNever);
  EXPECT_TRUE(of_a_while > 2 || of_a_while == -1) << of_a_while << " looks within 2 ms";
  const int late = times_of({1'000'000'000, 0s}, begin);
  EXPECT_EQ(late, 1) << "no yield when the deadline has passed";
  int yes_at = 0;
  EXPECT_TRUE(cost.look([&] { return ++yes_at == 2; }, {20, 0s}, kNever));
  EXPECT_EQ(yes_at, 2);
}

TEST(YieldCost, SomeCheapOnesEndIt) {
  YieldCost cost;
  for (int i = 0; i < 20; ++i) cost.note(3ms);
  (void)waits_without(cost);
  int cheap = 0;
  while (cost.dear()) {
    cost.note(5us);
    EXPECT_TRUE(cost.worth_trying());
    ++cheap;
  }
  EXPECT_TRUE(cheap > 1 && cheap < 20) << cheap;
  cost.note(3ms);
  EXPECT_EQ(waits_without(cost), 16);
}

}  // namespace
}  // namespace horon::core
