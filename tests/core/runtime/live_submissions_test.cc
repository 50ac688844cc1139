#include "horon/core/runtime/live_submissions.h"

#include <chrono>
#include <cstdint>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(LiveSubmissions, ACellIsUsedAgainUnderAnotherTicket) {
  LiveSubmissions live;
  const Ticket first = live.add();
  live.at(first).bytes = 7;
  live.erase(first);
  const Ticket second = live.add();
  EXPECT_NE(second, first);
  EXPECT_EQ(live.at(second).bytes, 0U);
  EXPECT_EQ(live.any(), second);
  live.erase(second);
  EXPECT_TRUE(live.empty());
}

// As after 2^32 blocking calls, which all use one cell.
TEST(LiveSubmissions, ACellIsUsedOnWhenItsGenerationsBeginAgain) {
  LiveSubmissions live(/*first_generation=*/UINT32_MAX);
  live.erase(live.add());
  const Ticket ticket = live.add();
  live.at(ticket).bytes = 7;
  EXPECT_EQ(live.any(), ticket);
  live.erase(ticket);
  EXPECT_TRUE(live.empty());
}

// A job that fails ends all that is under way. By the square of their number this were seconds.
TEST(LiveSubmissions, ThousandsThatEndTakeNoTime) {
  LiveSubmissions live;
  for (int i = 0; i < 100'000; ++i) (void)live.add();
  const auto begin = std::chrono::steady_clock::now();
  while (!live.empty()) live.erase(live.any());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  const Ticket next = live.add();
  EXPECT_EQ(live.any(), next);
}

TEST(LiveSubmissionsDeathTest, ATicketThatHasEndedIsFoundOut) {
  LiveSubmissions live;
  const Ticket ended = live.add();
  live.erase(ended);
  (void)live.add();
  EXPECT_DEATH(live.erase(ended), "finished twice");
}

}  // namespace
}  // namespace horon::core
