// The store that takes less time is used, and a change is noticed.
#include "horon/ops/host/store_choice.h"

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

// Uses it so often where the two stores take these times; how often it stores past the caches in
// the second half.
int uses_past_caches(StoreChoice& choice, double plain, double past_caches, int uses) {
  int count = 0;
  for (int i = 0; i < uses; ++i) {
    const bool past = choice.past_caches();
    if (i >= uses / 2) count += past ? 1 : 0;
    choice.note(past, past ? past_caches : plain);
  }
  return count;
}

TEST(StoreChoice, KeepsToTheFasterOne) {
  StoreChoice plain_is_faster;
  EXPECT_TRUE(plain_is_faster.past_caches());  // the first guess
  EXPECT_LT(uses_past_caches(plain_is_faster, 0.8, 1, 400), 20);
  StoreChoice past_is_faster;
  EXPECT_GT(uses_past_caches(past_is_faster, 1, 0.8, 400), 180);
}

TEST(StoreChoice, NoticesWhatChanges) {
  StoreChoice choice;
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 400), 20);
  EXPECT_GT(uses_past_caches(choice, 1, 0.8, 400), 150);
  // Other load makes all longer, and for a while.
  EXPECT_GT(uses_past_caches(choice, 5, 4, 400), 150);
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 400), 50);
}

TEST(StoreChoice, OneSlowCallChangesNothing) {
  StoreChoice choice;
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 400), 20);
  choice.note(false, 100);
  EXPECT_LT(uses_past_caches(choice, 0.8, 1, 100), 10);
}

}  // namespace
}  // namespace horon::ops
