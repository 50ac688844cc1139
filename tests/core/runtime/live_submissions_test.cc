#include "horon/core/runtime/live_submissions.h"

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

// After 2^32 blocking calls, which all use one cell.
TEST(LiveSubmissions, ACellIsUsedOnWhenItsGenerationsBeginAgain) {
  LiveSubmissions live(/*first_generation=*/UINT32_MAX);
  live.erase(live.add());
  const Ticket ticket = live.add();
  live.at(ticket).bytes = 7;
  EXPECT_EQ(live.any(), ticket);
  live.erase(ticket);
  EXPECT_TRUE(live.empty());
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
