#include "horon/core/negotiation/liveness.h"

#include <optional>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(Liveness, AsksOncePerInterval) {
  Liveness liveness(10, 100);
  EXPECT_TRUE(liveness.suspect(1, 0));
  EXPECT_FALSE(liveness.suspect(1, 9));
  EXPECT_TRUE(liveness.suspect(1, 10));
  EXPECT_TRUE(liveness.suspect(2, 10));
}

TEST(Liveness, AnAnswerIsNoReasonToAskAtOnce) {
  Liveness liveness(10, 100);
  EXPECT_TRUE(liveness.suspect(1, 0));
  liveness.heard(1);
  EXPECT_FALSE(liveness.suspect(1, 5));
  EXPECT_TRUE(liveness.suspect(1, 10));
}

TEST(Liveness, DeadWhenTheFirstOpenQuestionIsTooOld) {
  Liveness liveness(10, 100);
  liveness.suspect(1, 0);
  liveness.suspect(1, 50);
  EXPECT_EQ(liveness.dead(99), std::nullopt);
  EXPECT_EQ(liveness.dead(100), 1);
}

TEST(Liveness, AnAnswerStartsTheTimeAnew) {
  Liveness liveness(10, 100);
  liveness.suspect(1, 0);
  liveness.heard(1);
  EXPECT_EQ(liveness.dead(1000), std::nullopt);
  liveness.suspect(1, 1000);
  EXPECT_EQ(liveness.dead(1099), std::nullopt);
  EXPECT_EQ(liveness.dead(1100), 1);
}

TEST(Liveness, TheLongestSilenceIsNamed) {
  Liveness liveness(10, 100);
  liveness.suspect(3, 5);
  liveness.suspect(1, 7);
  liveness.suspect(2, 4);
  liveness.suspect(4, 4);
  EXPECT_EQ(liveness.dead(200), 2);
  liveness.heard(2);
  liveness.heard(2);
  EXPECT_EQ(liveness.dead(200), 4);
  liveness.heard(4);
  EXPECT_EQ(liveness.dead(200), 3);
}

TEST(Liveness, NobodyIsBlamedForOurOwnSleep) {
  Liveness liveness(10, 100);
  liveness.suspect(1, 0);
  liveness.forgive(1000);
  EXPECT_EQ(liveness.dead(1099), std::nullopt);
  EXPECT_EQ(liveness.dead(1100), 1);
}

TEST(Liveness, ZeroIsNever) {
  Liveness liveness(10, 0);
  EXPECT_FALSE(liveness.suspect(1, 0)) << "nothing would follow from its silence";
  EXPECT_EQ(liveness.dead(1'000'000), std::nullopt);
}

TEST(Liveness, HeardOfThoseWhoWereNotAsked) {
  Liveness liveness(10, 100);
  liveness.heard(5);
  EXPECT_EQ(liveness.dead(1000), std::nullopt);
}

}  // namespace
}  // namespace horon::core
