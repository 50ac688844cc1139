// Which elements of a reducescatter go to which rank.
#include "horon/core/execution/block_layout.h"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

using Blocks = std::vector<std::vector<int64_t>>;

constexpr std::array kRanks = {4, 7, 9};

EntrySpec reducescatter(std::vector<TensorPart> parts, std::vector<int64_t> splits) {
  EntrySpec spec;
  spec.kind = CollectiveKind::Reducescatter;
  spec.parts = std::move(parts);
  spec.splits = std::move(splits);
  return spec;
}

TEST(BlockLayout, RowsOfEachTensorAreDivided) {
  const EntrySpec spec = reducescatter({{"a", {5, 2}}, {"b", {5}}}, {1, 0, 4});
  const BlockLayout layout = make_block_layout(spec, {}, 2, kRanks);
  EXPECT_EQ(layout.in, (Blocks{{2, 0, 8}, {1, 0, 4}}));
  EXPECT_EQ(layout.out, (Blocks{{8}, {4}}));
  EXPECT_EQ(layout.in_total, 15);
  EXPECT_EQ(layout.out_total, 12);
}

// Also a tensor without dimensions, and one without elements.
TEST(BlockLayout, TensorsDividedAsOne) {
  EntrySpec spec = reducescatter({{"a", {2, 3}}, {"b", {}}, {"c", {0, 4}}, {"d", {5}}}, {7, 0, 5});
  spec.as_one = true;
  for (int me = 0; me < 3; ++me) {
    const BlockLayout layout = make_block_layout(spec, {}, me, kRanks);
    EXPECT_EQ(layout.in, (Blocks{{7, 0, 5}}));
    EXPECT_EQ(layout.out, (Blocks{{spec.splits[static_cast<size_t>(me)]}}));
    EXPECT_EQ(layout.in_total, 12);
    EXPECT_EQ(layout.out_total, layout.out.front().front());
  }
}

}  // namespace
}  // namespace horon::core
