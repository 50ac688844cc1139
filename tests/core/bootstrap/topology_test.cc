#include "horon/core/bootstrap/topology.h"

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(Topology, OneRankAlone) {
  const Topology topology = make_topology(0, std::vector<int>{42});
  EXPECT_EQ(topology.size, 1);
  EXPECT_EQ(topology.local_size, 1);
  EXPECT_EQ(topology.cross_size, 1);
  EXPECT_EQ(topology.local_ranks, std::vector<int>{0});
  EXPECT_TRUE(topology.one_host());
}

TEST(Topology, NumbersHostsByTheirLowestRank) {
  // Ranks 0, 3, 4 on one host, 1 on the second, 2 and 5 on the third.
  const std::vector<int> keys = {9, 5, 7, 9, 9, 7};
  const std::vector<int> local_ranks = {0, 0, 0, 1, 2, 1};
  const std::vector<int> local_sizes = {3, 1, 2, 3, 3, 2};
  const std::vector<int> cross_ranks = {0, 1, 2, 0, 0, 1};
  const std::vector<int> cross_sizes = {3, 3, 3, 2, 1, 2};
  for (int rank = 0; rank < 6; ++rank) {
    const Topology topology = make_topology(rank, keys);
    const auto at = static_cast<size_t>(rank);
    EXPECT_EQ(topology.rank, rank);
    EXPECT_EQ(topology.size, 6);
    EXPECT_EQ(topology.host_of, (std::vector<int>{0, 1, 2, 0, 0, 2}));
    EXPECT_EQ(topology.local_rank, local_ranks[at]) << rank;
    EXPECT_EQ(topology.local_size, local_sizes[at]) << rank;
    EXPECT_EQ(topology.cross_rank, cross_ranks[at]) << rank;
    EXPECT_EQ(topology.cross_size, cross_sizes[at]) << rank;
    EXPECT_EQ(topology.local_ranks[static_cast<size_t>(topology.local_rank)], rank);
    EXPECT_FALSE(topology.one_host());
  }
  EXPECT_EQ(make_topology(4, keys).local_ranks, (std::vector<int>{0, 3, 4}));
}

TEST(Topology, HasOneLeaderForEachHost) {
  const std::vector<int> keys = {9, 5, 7, 9, 9, 7};
  EXPECT_EQ(make_topology(4, keys).leaders(), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(make_topology(4, keys).host_count(), 3);
  EXPECT_EQ(make_topology(0, std::vector<int>{1, 1}).leaders(), std::vector<int>{0});
}

TEST(Topology, MembersHaveOneOfTheirOwn) {
  // Ranks 0, 3, 4 on one host, 1 on the second, 2 and 5 on the third.
  const Topology all = make_topology(4, std::vector<int>{9, 5, 7, 9, 9, 7});
  const Topology some = restrict_to_members(all, std::vector<int>{2, 3, 4, 5});
  EXPECT_EQ(some.rank, 2);
  EXPECT_EQ(some.size, 4);
  EXPECT_EQ(some.host_of, (std::vector<int>{0, 1, 1, 0}));
  EXPECT_EQ(some.local_ranks, (std::vector<int>{1, 2}));
  EXPECT_EQ(some.local_rank, 1);
  EXPECT_EQ(some.leaders(), (std::vector<int>{0, 1}));
  EXPECT_FALSE(some.one_host());
  EXPECT_TRUE(restrict_to_members(all, std::vector<int>{0, 4}).one_host());
}

TEST(TopologyDeathTest, RefusesRanksOutsideTheJob) {
  EXPECT_DEATH(make_topology(1, std::vector<int>{0}), "one of the job");
  EXPECT_DEATH(make_topology(-1, std::vector<int>{0}), "one of the job");
  const Topology all = make_topology(1, std::vector<int>{0, 0, 0});
  EXPECT_DEATH(restrict_to_members(all, std::vector<int>{0, 2}), "this rank is a member");
}

}  // namespace
}  // namespace horon::core
