// The store that takes less time is used, and a change is noticed.
#include "horon/ops/host/store_choice.h"

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

// Uses the choice `uses` times, when the two stores take these times. Returns how often it stores
// past the caches in the second half.
int uses_past_caches(StoreChoice& choice, double plain, double past_caches, int uses) {
  int count = 0;
  for (int i = 0; i < uses; ++i) {
    const bool past = choice.past_caches(true);
    if (i >= uses / 2) count += past ? 1 : 0;
    choice.note(past, past ? past_caches : plain);
  }
  return count;
}

TEST(StoreChoice, KeepsToTheFasterOne) {
  StoreChoice plain_is_faster;
  EXPECT_TRUE(plain_is_faster.past_caches(true));  // the first guess
  EXPECT_LT(uses_past_caches(plain_is_faster, 0.8, 1, 400), 20);
  StoreChoice past_is_faster;
  EXPECT_GT(uses_past_caches(past_is_faster, 1, 0.8, 400), 180);
}

TEST(StoreChoice, NoticesWhatChanges) {
  StoreChoice choice;
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 400), 20);
  EXPECT_GT(uses_past_caches(choice, 1, 0.8, 400), 150);
  // Other programs make all stores slower for a while.
  EXPECT_GT(uses_past_caches(choice, 5, 4, 400), 150);
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 400), 50);
}

// Short blocks are not timed, and come between blocks that are.
TEST(StoreChoice, ShortBlocksUseTheFasterOne) {
  StoreChoice choice;
  for (int i = 0; i < 200; ++i) {
    const bool past = choice.past_caches(true);
    choice.note(past, past ? 1 : 0.8);
    if (i > 0) {
      EXPECT_FALSE(choice.past_caches(false)) << i;
    }
  }
}

// A step with blocks of two sizes, of which one takes longer for each byte.
TEST(StoreChoice, NoticesWhatChangesForBlocksOfTwoSizes) {
  StoreChoice choice;
  int past_at_last = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool past = choice.past_caches(true);
    const bool now_past_is_faster = i >= 500;
    const double time = past == now_past_is_faster ? 0.8 : 1;
    choice.note(past, i % 2 == 0 ? time : 1.5 * time);
    past_at_last += i >= 750 && past ? 1 : 0;
  }
  EXPECT_GT(past_at_last, 200);
}

TEST(StoreChoice, OneSlowCallChangesNothing) {
  StoreChoice choice;
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 400), 20);
  choice.note(false, 100);
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 100), 10);
}

}  // namespace
}  // namespace horon::ops
