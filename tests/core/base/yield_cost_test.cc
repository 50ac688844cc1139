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
