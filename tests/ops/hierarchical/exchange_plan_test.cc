// Which ranks exchange messages between the hosts, and in which pieces.
#include "horon/ops/hierarchical/exchange_plan.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

HostsLayout layout_of(const std::vector<int>& hosts, int rank) {
  return make_hosts_layout(core::make_topology(rank, hosts));
}

TEST(HostsLayout, LanesAreAsManyAsTheSmallestHostHasRanks) {
  const HostsLayout first = layout_of({0, 0, 1, 1, 0}, 0);
  EXPECT_EQ(first.hosts, 2);
  EXPECT_EQ(first.lanes, 2);
  EXPECT_EQ(first.most_ranks, 3);
  EXPECT_EQ(first.peers, (std::vector{0, 2}));
  const HostsLayout second = layout_of({0, 0, 1, 1, 0}, 3);
  EXPECT_EQ(second.host, 1);
  EXPECT_EQ(second.local_rank, 1);
  EXPECT_EQ(second.peers, (std::vector{1, 3}));
  const HostsLayout idle = layout_of({0, 0, 1, 1, 0}, 4);
  EXPECT_FALSE(idle.drives());
  EXPECT_TRUE(idle.peers.empty());
  EXPECT_TRUE(layout_of({0, 1, 2}, 1).one_rank_each());
}

// Expects that every element is in one chunk, in one part of it and in one lane.
void expect_covered_once(const HostsLayout& layout, const ExchangePlan& plan, int64_t count,
                         int64_t longest_message) {
  int64_t elements = 0;
  for (int64_t index = 0; index < plan.chunks; ++index) {
    const ExchangePlan::Stretch chunk = plan.chunk(index);
    ASSERT_EQ(chunk.begin, elements);
    ASSERT_GT(chunk.count, 0);
    int64_t parts = 0;
    for (int host = 0; host < layout.hosts; ++host) {
      const ExchangePlan::Stretch part = plan.part(chunk, host, layout.hosts);
      ASSERT_EQ(part.begin, parts);
      ASSERT_EQ(part.begin % WireType::kAlignment == 0 || part.count == 0, true);
      ASSERT_LE(plan.wire_type.bytes(part.count),
                plan.one_round ? int64_t{1} << 20 : longest_message);
      parts += part.count;
    }
    ASSERT_EQ(parts, chunk.count);
    elements += chunk.count;
  }
  ASSERT_EQ(elements, count);
  int64_t of_lanes = 0;
  for (int lane = 0; lane < layout.lanes; ++lane) {
    of_lanes += layout.of_lane(plan.chunks, lane);
  }
  ASSERT_EQ(of_lanes, plan.chunks);
  ASSERT_GE(plan.chunks_at_once * layout.lanes, 4);
}

const std::vector<std::vector<int>> kLayouts = {
    {0, 1}, {0, 0, 1}, {0, 1, 0, 1}, {0, 1, 2}, {0, 0, 0, 1, 1, 1, 2, 2}};
constexpr int64_t kLongestWish = std::numeric_limits<int64_t>::max();

TEST(ExchangePlan, ChunksAndPartsCoverTheBatchOnce) {
  for (const std::vector<int>& hosts : kLayouts) {
    const HostsLayout layout = layout_of(hosts, 0);
    for (const DataType dtype : {DataType::Float32, DataType::BFloat16, DataType::Int8}) {
      for (const int64_t count : {1, 63, 1000, 20'000, 1'234'567}) {
        expect_covered_once(layout, plan_exchange(layout, dtype, ReduceOp::Average, count), count,
                            kMessageBytes);
        for (const int64_t wish : {int64_t{1}, int64_t{5000}, int64_t{100'001}, kLongestWish}) {
          const ExchangePlan plan =
              plan_exchange(layout, dtype, ReduceOp::Average, count, DataType::Float32, {}, wish);
          expect_covered_once(layout, plan, count, int64_t{1} << 20);
        }
      }
    }
  }
}

// So many short messages would cost more than what they carry.
TEST(ExchangePlan, MessagesOfManyRanksAreNotShort) {
  struct Job {
    int hosts, ranks;
    int64_t message;
  };
  for (const Job& job : {Job{3, 8, 56 << 10},
                         {16, 8, 16 << 10},
                         {64, 8, 8 << 10},
                         {125, 8, 8 << 10},
                         {64, 64, 2 << 10},
                         {1000, 8, 1 << 10}}) {
    HostsLayout layout;
    layout.hosts = job.hosts;
    layout.local_size = layout.lanes = layout.most_ranks = job.ranks;
    const ExchangePlan plan =
        plan_exchange(layout, DataType::Float32, ReduceOp::Average, int64_t{1} << 30);
    ASSERT_FALSE(plan.one_round);
    const int64_t message = plan.part(plan.chunk(0), 0, job.hosts).count * 4;
    EXPECT_LE(message, job.message) << job.hosts << " hosts";
    EXPECT_GT(message, job.message * 4 / 5) << job.hosts << " hosts";
    EXPECT_LE(plan.chunk_elements * 4 * job.ranks, int64_t{8} << 20);
  }
}

TEST(ExchangePlan, ChunksHaveTheLengthThatIsAskedFor) {
  for (const std::vector<int>& hosts : kLayouts) {
    const HostsLayout layout = layout_of(hosts, 0);
    for (const WireType wire :
         {WireType(), WireType(DataType::BFloat16), WireType::int8_blocks()}) {
      const auto plan = [&](int64_t wish) {
        return plan_exchange(layout, DataType::Float32, ReduceOp::Sum, 1 << 26, wire, {}, wish);
      };
      const ExchangePlan usual = plan(0);
      for (const int64_t wish : {int64_t{1}, int64_t{64} << 10, int64_t{200'000}, kLongestWish}) {
        const ExchangePlan wished = plan(wish);
        EXPECT_EQ(wished.one_round, usual.one_round) << "how often it is rounded must not change";
        EXPECT_EQ(wished.wire_type, usual.wire_type);
        const int64_t bytes = wished.chunk_elements * 4;
        EXPECT_LE(bytes * layout.most_ranks, int64_t{2} << 20);
        if (wish == 1) {
          EXPECT_LE(bytes, 4 << 10);
        } else if (wish == kLongestWish) {
          EXPECT_GE(bytes, usual.chunk_elements * 4);
        } else {
          const int64_t grain = 4 * WireType::kAlignment * layout.hosts;
          EXPECT_LE(bytes, wish);
          EXPECT_GT(bytes, std::min(wish, plan(kLongestWish).chunk_elements * 4) - grain);
        }
      }
    }
  }
}

TEST(ExchangePlan, OneRoundWhereItSendsHardlyMore) {
  const auto one_round = [](const std::vector<int>& hosts, DataType dtype, int64_t count) {
    return plan_exchange(layout_of(hosts, 0), dtype, ReduceOp::Sum, count).one_round;
  };
  // Two hosts send each other as much in one round as in two.
  EXPECT_TRUE(one_round({0, 1}, DataType::Float32, 1 << 24));
  EXPECT_TRUE(one_round({0, 1}, DataType::BFloat16, 1 << 24));
  EXPECT_TRUE(one_round({0, 1, 0, 1}, DataType::Float32, 1 << 24));
  // Sums in float32 would come back in 16 bits.
  EXPECT_FALSE(one_round({0, 1, 0, 1}, DataType::BFloat16, 1 << 24));
  EXPECT_TRUE(one_round({0, 1, 2}, DataType::Float32, 1 << 10));
  EXPECT_FALSE(one_round({0, 1, 2}, DataType::Float32, 1 << 20));
}

TEST(ExchangePlan, TheResultTravelsIn16BitsToo) {
  const auto plan = [](const std::vector<int>& hosts) {
    return plan_exchange(layout_of(hosts, 0), DataType::Float32, ReduceOp::Average, 1 << 20,
                         DataType::BFloat16);
  };
  EXPECT_TRUE(plan({0, 1}).one_round);
  EXPECT_FALSE(plan({0, 1}).raw) << "the input is rounded on its way";
  EXPECT_TRUE(plan({0, 1, 0, 1}).one_round);
  EXPECT_FALSE(plan({0, 1, 2}).one_round);
  EXPECT_EQ(describe(layout_of({0, 1}, 0), plan({0, 1})),
            "2 hosts, 1 lane, one round, 37 chunks of 56 KiB of bfloat16");
}

// A chunk is added, or written to the ranks of a host, in one go, for which the loop waits.
TEST(ExchangePlan, ChunksAreShorterWhereManyRanksShareAHost) {
  for (const int hosts : {2, 3, 8, 32}) {
    for (const int ranks : {1, 2, 8, 64}) {
      for (const DataType dtype : {DataType::Float32, DataType::BFloat16, DataType::Int8}) {
        std::vector<int> host_of = {hosts - 1};  // has one rank more
        for (int host = 0; host < hosts; ++host) host_of.insert(host_of.end(), ranks, host);
        const ExchangePlan plan =
            plan_exchange(layout_of(host_of, 1), dtype, ReduceOp::Average, 1 << 26);
        const bool many = hosts * (ranks + 1) > 256;  // whose messages would be too short
        EXPECT_LE(plan.wire_type.bytes(plan.chunk_elements) * (ranks + 1),
                  int64_t{many ? 8 : 2} << 20)
            << hosts << " hosts, " << ranks << " ranks";
        const ExchangePlan of_last =
            plan_exchange(layout_of(host_of, 0), dtype, ReduceOp::Average, 1 << 26);
        EXPECT_EQ(of_last.chunk_elements, plan.chunk_elements);
      }
    }
  }
}

// The lanes of a host share its network link, and each of its ranks stages the chunks of all lanes.
TEST(ExchangePlan, LanesShareWhatAHostHasUnderWay) {
  for (const int hosts : {2, 3, 8}) {
    const auto under_way = [&](int ranks) {  // bytes, in all lanes
      std::vector<int> host_of;
      for (int host = 0; host < hosts; ++host) host_of.insert(host_of.end(), ranks, host);
      const HostsLayout layout = layout_of(host_of, 0);
      const ExchangePlan plan =
          plan_exchange(layout, DataType::Float32, ReduceOp::Sum, int64_t{1} << 30);
      return layout.lanes * plan.chunks_at_once * plan.wire_type.bytes(plan.chunk_elements);
    };
    for (const int ranks : {2, 4, 8, 64}) {
      const auto trace = testing::Message() << hosts << " hosts, " << ranks << " ranks";
      if (ranks <= 8) {
        EXPECT_GE(under_way(ranks), under_way(1)) << trace;
      }
      EXPECT_LE(under_way(ranks), int64_t{hosts * ranks > 256 ? 8 : 4} << 20) << trace;
    }
  }
}

TEST(ExchangePlan, SaysWhatItDoes) {
  const HostsLayout layout = layout_of({0, 1, 0, 1}, 0);
  EXPECT_EQ(describe(layout, plan_exchange(layout, DataType::Float32, ReduceOp::Sum, 1 << 18)),
            "2 hosts, 2 lanes, one round, 19 chunks of 56 KiB of float32");
}

}  // namespace
}  // namespace horon::ops
