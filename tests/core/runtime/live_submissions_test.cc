#include "horon/core/runtime/live_submissions.h"

#include <cstdint>
#include <ctime>

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
TEST(LiveSubmissions, TheTimeOfThousandsIsProportionalToTheirNumber) {
  const auto time_of = [](int count) {
    const std::clock_t begin = std::clock();  // of this process: others may take the core
    LiveSubmissions live;
    for (int i = 0; i < count; ++i) (void)live.add();
    while (!live.empty()) live.erase(live.any());
    const Ticket next = live.add();
    EXPECT_EQ(live.any(), next);
    return std::clock() - begin;
  };
  EXPECT_LT(time_of(100'000), 40 * time_of(10'000) + CLOCKS_PER_SEC / 50);
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
