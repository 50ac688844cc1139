#include "horon/core/base/rank_names.h"

#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(RankNames, OneRankAndSeveral) {
  EXPECT_EQ(name_ranks(std::vector<int>{7}), "rank 7");
  EXPECT_EQ(name_ranks(std::vector<int>{0, 2}), "ranks 0 and 2");
  EXPECT_EQ(name_ranks(std::vector<int>{0, 1, 5}), "ranks 0, 1 and 5");
}

TEST(RankNames, LongListsAreCut) {
  std::vector<int> ranks(100);
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::string text = name_ranks(ranks);
  EXPECT_TRUE(text.ends_with("15, ... (100 in all)")) << text;
}

}  // namespace
}  // namespace horon::core
