// Chunks of the blocks of all members: each element is in exactly one, and hosts take turns.
#include "horon/ops/hierarchical/block_chunks.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

BlockChunks chunks_of(const std::vector<int>& hosts, int lanes, std::vector<int64_t> blocks) {
  return {core::make_topology(0, hosts), lanes, std::move(blocks), 10};
}

TEST(BlockChunks, CoverEachBlockOnce) {
  const std::vector<int> hosts = {0, 1, 0, 2, 1, 0};
  const std::vector<std::vector<int64_t>> all_blocks = {{0, 0, 0, 0, 0, 0},
                                                        {35, 0, 0, 0, 0, 0},
                                                        {1, 10, 11, 99, 20, 0},
                                                        {0, 0, 0, 1234, 0, 7},
                                                        {100, 100, 100, 100, 100, 100}};
  for (const std::vector<int64_t>& blocks : all_blocks) {
    for (const int lanes : {1, 2, 3}) {
      const BlockChunks chunks = chunks_of(hosts, lanes, blocks);
      if (chunks.count() > 0) {
        ASSERT_GT(chunks.at(chunks.count() - 1).count, 0) << "a lane is filled for nothing";
      }
      std::vector<std::set<int64_t>> seen(blocks.size());
      for (int64_t index = 0; index < chunks.count(); ++index) {
        const BlockChunks::Chunk chunk = chunks.at(index);
        if (chunk.count == 0) continue;
        const auto member = static_cast<size_t>(chunk.member);
        EXPECT_EQ(hosts[member], chunk.host);
        EXPECT_EQ(std::count(hosts.begin(), hosts.begin() + chunk.member, chunk.host),
                  chunk.local_rank);
        for (int64_t i = 0; i < chunk.count; ++i) {
          EXPECT_TRUE(seen[member].insert(chunk.begin + i).second);
        }
      }
      for (size_t member = 0; member < blocks.size(); ++member) {
        ASSERT_EQ(std::ssize(seen[member]), blocks[member]);
        if (blocks[member] > 0) {
          EXPECT_EQ(*seen[member].rbegin(), blocks[member] - 1);
        }
      }
    }
  }
}

TEST(BlockChunks, AShortBlockIsOneChunk) {
  const std::vector<int> hosts = {0, 0, 0, 0, 1, 1, 1, 1};
  EXPECT_EQ(chunks_of(hosts, 4, {0, 0, 0, 0, 0, 1, 0, 0}).count(), 1);
  EXPECT_EQ(chunks_of(hosts, 4, {0, 0, 0, 0, 0, 41, 0, 0}).count(), 5);
}

// All hosts send all the time, as long as they have something.
TEST(BlockChunks, HostsTakeTurns) {
  const BlockChunks chunks = chunks_of({0, 0, 1, 1, 2}, 1, {20, 20, 30, 10, 100});
  std::vector<int> order;
  for (int64_t index = 0; index < chunks.count(); ++index) order.push_back(chunks.at(index).host);
  EXPECT_EQ(order, (std::vector{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 2, 2, 2, 2, 2}));
}

TEST(BlockChunks, TheLanesOfAHostHaveEquallyMuchToDo) {
  const BlockChunks chunks = chunks_of({0, 0, 1, 1}, 2, {400, 0, 200, 200});
  std::vector<std::vector<int64_t>> elements(2, std::vector<int64_t>(2));  // [host][lane]
  for (int64_t index = 0; index < chunks.count(); ++index) {
    const BlockChunks::Chunk chunk = chunks.at(index);
    elements[static_cast<size_t>(chunk.host)][static_cast<size_t>(index % 2)] += chunk.count;
  }
  EXPECT_EQ(elements, (std::vector<std::vector<int64_t>>{{200, 200}, {200, 200}}));
}

}  // namespace
}  // namespace horon::ops
