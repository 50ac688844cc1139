// The allreduce over several hosts among threads of one process, which take each other for ranks of
// those hosts: the same code under ThreadSanitizer.
#include <numeric>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hierarchical_exchange.h"
#include "horon/ops/host/host_memory.h"
#include "horon/tests/ops/op_contract.h"
#include "horon/tests/support/thread_messages.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using Body = std::function<void(const World& world, HierarchicalAllreduce& op)>;

// Rank r is on host hosts[r].
void with_hosts(const std::vector<int>& hosts, const Body& body) {
  const int size = static_cast<int>(hosts.size());
  core::InProcessJob job(hosts);
  MessageHub hub;
  core::run_ranks(size, [&](int rank) {
    const core::Topology& topology = job.of(rank).topology();
    const auto group =
        core::LocalGroup::create(job.of(rank), HierarchicalAllreduce::area_bytes(topology) + 64);
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(group.get()));
    HierarchicalAllreduce::Parts parts;
    parts.topology = topology;
    parts.messages = std::make_shared<ThreadMessages>(hub, rank);
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    parts.group = group.get();
    parts.area = group->area();
    HierarchicalAllreduce op(std::move(parts));
    World world;
    world.rank = rank;
    world.size = size;
    world.doorbell = &group->doorbell(topology.local_rank);
    world.allocate = [&](size_t bytes) { return group->allocate(bytes); };
    world.gather = [&](uint64_t mine) {
      return core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, mine);
    };
    body(world, op);
    world.gather(0);
  });
  EXPECT_TRUE(hub.empty());
}

// Each thread is a host.
class ExchangeThreads : public testing::TestWithParam<int> {};

TEST_P(ExchangeThreads, AllKinds) {
  const int size = GetParam();
  MessageHub hub;
  std::vector<int> hosts(static_cast<size_t>(size));
  std::iota(hosts.begin(), hosts.end(), 0);
  core::InProcessJob job(hosts);
  core::run_ranks(size, [&](int rank) {
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    const auto exchange = std::make_shared<MessageExchange>(
        std::make_shared<ThreadMessages>(hub, rank),
        std::make_shared<core::ScratchPool>(std::move(domains)), rank, size);
    World world;
    world.rank = rank;
    world.size = size;
    world.gather = [&](uint64_t mine) {
      return core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, mine);
    };
    HierarchicalExchange allgather(exchange, CollectiveKind::Allgather, true);
    EXPECT_EQ(allgather.name(), "hier_allgather");
    check_allgather(world, allgather);
    HierarchicalExchange reducescatter(exchange, CollectiveKind::Reducescatter, true);
    check_reducescatter(world, reducescatter);
    for (const CollectiveKind kind :
         {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
      HierarchicalExchange op(exchange, kind, true);
      check_exchange(world, op, kind);
    }
  });
  EXPECT_TRUE(hub.empty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, ExchangeThreads, testing::Values(1, 2, 3, 5));

TEST(HierarchicalExchange, SendsNothingTwiceToAHost) {
  for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    EXPECT_NE(HierarchicalExchange(nullptr, kind, false).refusal({.kind = kind}), "");
    EXPECT_EQ(HierarchicalExchange(nullptr, kind, true).refusal({.kind = kind}), "");
  }
  EXPECT_EQ(HierarchicalExchange(nullptr, CollectiveKind::Alltoall, false)
                .refusal({.kind = CollectiveKind::Alltoall}),
            "");
}

std::string layout_name(const testing::TestParamInfo<std::vector<int>>& tested) {
  std::string name = "hosts";
  for (const int host : tested.param) name += "_" + std::to_string(host);
  return name;
}

class HierarchicalThreads : public testing::TestWithParam<std::vector<int>> {};

TEST_P(HierarchicalThreads, Allreduce) {
  with_hosts(GetParam(), [](const World& world, HierarchicalAllreduce& op) {
    check_allreduce(world, op);
    check_allreduce_refusals(op);
  });
}

TEST_P(HierarchicalThreads, LongOnes) {
  with_hosts(GetParam(), [](const World& world, HierarchicalAllreduce& op) {
    check_long_allreduce(world, op, 150007);
    check_mixed_places(world, op);
  });
}

TEST_P(HierarchicalThreads, SameBitsNanAndScales) {
  with_hosts(GetParam(), [](const World& world, HierarchicalAllreduce& op) {
    check_same_bits(world, op);
    check_nan(world, op);
    check_scales(world, op);
  });
}

TEST_P(HierarchicalThreads, ManyInFlight) {
  with_hosts(GetParam(), [](const World& world, HierarchicalAllreduce& op) {
    check_many_in_flight(world, op, 12);
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalThreads,
                         testing::Values(std::vector{0, 0, 1}, std::vector{0, 1, 0, 1},
                                         std::vector{0, 1, 2}),
                         layout_name);

}  // namespace
}  // namespace horon::ops
