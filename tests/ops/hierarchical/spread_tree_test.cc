// Which hosts send a block to which.
#include "horon/ops/hierarchical/spread_tree.h"

#include <vector>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

TEST(SpreadTree, ReachesEveryHostOnceAlongParentsAndChildrenThatKnowEachOther) {
  for (int hosts = 1; hosts <= 9; ++hosts) {
    for (int fan_out = 1; fan_out <= hosts; ++fan_out) {
      for (int source = 0; source < hosts; ++source) {
        const SpreadTree tree{hosts, fan_out, source};
        std::vector<int> reached = {source};
        for (size_t next = 0; next < reached.size(); ++next) {
          for (int child = 0; child < tree.children_of(reached[next]); ++child) {
            const int host = tree.child(reached[next], child);
            EXPECT_EQ(tree.parent_of(host), reached[next]);
            reached.push_back(host);
            ASSERT_LE(reached.size(), static_cast<size_t>(hosts));
          }
        }
        EXPECT_EQ(reached.size(), static_cast<size_t>(hosts));
      }
    }
  }
}

}  // namespace
}  // namespace horon::ops
