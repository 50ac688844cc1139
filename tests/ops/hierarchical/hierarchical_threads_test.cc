// The allreduce over several hosts among threads of one process, which take each other for ranks of
// those hosts: the same code under ThreadSanitizer.
#include <algorithm>
#include <numeric>
#include <set>

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
using MakeMessages = std::function<std::shared_ptr<Messages>(MessageHub& hub, int rank)>;

std::shared_ptr<Messages> thread_messages(MessageHub& hub, int rank) {
  return std::make_shared<ThreadMessages>(hub, rank);
}

// Rank r is on host hosts[r]. Returns the most bytes of scratch memory that a rank has held.
size_t with_hosts(const std::vector<int>& hosts, const Body& body,
                  const MakeMessages& make_messages = thread_messages) {
  const int size = static_cast<int>(hosts.size());
  core::InProcessJob job(hosts);
  MessageHub hub;
  std::vector<size_t> scratch_peaks(hosts.size());
  core::run_ranks(size, [&](int rank) {
    const core::Topology& topology = job.of(rank).topology();
    const auto group =
        core::LocalGroup::create(job.of(rank), HierarchicalAllreduce::area_bytes(topology) + 64);
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(group.get()));
    HierarchicalAllreduce::Parts parts;
    parts.topology = topology;
    parts.messages = make_messages(hub, rank);
    const auto scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    parts.scratch = scratch;
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
    scratch_peaks[static_cast<size_t>(rank)] = scratch->usage().bytes_peak;
  });
  EXPECT_TRUE(hub.empty());
  return *std::max_element(scratch_peaks.begin(), scratch_peaks.end());
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

// Memory that the others can't map is copied through a window, however long the tensor is.
TEST(HierarchicalStaging, TakesLittleScratchMemoryForALongTensor) {
  const auto body = [](const World& world, HierarchicalAllreduce& op) {
    const auto number = [](int rank, size_t i) { return static_cast<int32_t>(rank + i % 100'003); };
    std::vector<int32_t> numbers(size_t{16} << 20);  // 64 MiB
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = number(world.rank, i);
    core::Batch batch;
    batch.dtype = DataType::Int32;
    batch.count = std::ssize(numbers);
    batch.output = reinterpret_cast<std::byte*>(numbers.data());
    batch.input = batch.output;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(op.start(std::move(batch)));
    std::mt19937_64 random(1);
    drive(world, std::move(in_flight), random);
    for (size_t i = 0; i < numbers.size(); ++i) {
      int32_t sum = 0;
      for (int rank = 0; rank < world.size; ++rank) sum += number(rank, i);
      ASSERT_EQ(numbers[i], sum) << i;
    }
  };
  EXPECT_LT(with_hosts({0, 0, 1}, body), size_t{16} << 20);
  EXPECT_LT(with_hosts({0, 1, 0, 1}, body), size_t{32} << 20);
}

// Nothing that is received is over before `count` messages have come; then all of them are.
class AllAtOnce final : public Messages {
 public:
  AllAtOnce(MessageHub& hub, int rank, size_t count) : messages_(hub, rank), count_(count) {}

  Ticket send(int to, int tag, const std::byte* data, int64_t bytes) override {
    return messages_.send(to, tag, data, bytes);
  }
  Ticket receive(int from, int tag, std::byte* data, int64_t bytes) override {
    return *received_.insert(messages_.receive(from, tag, data, bytes)).first;
  }
  void progress() override {
    messages_.progress();
    const auto has_come = [this](Ticket ticket) { return messages_.take_if_over(ticket); };
    all_here_ = all_here_ || (received_.size() >= count_ &&
                              std::all_of(received_.begin(), received_.end(), has_come));
  }
  bool take_if_over(Ticket ticket) override {
    const bool is_receive = received_.contains(ticket);
    if ((is_receive && !all_here_) || !messages_.take_if_over(ticket)) return false;
    if (is_receive) ++taken_;
    return true;
  }
  int64_t taken() const { return taken_; }  // of those that are received

 private:
  ThreadMessages messages_;
  const size_t count_;
  std::set<Ticket> received_;
  bool all_here_ = false;
  int64_t taken_ = 0;
};

// However many messages have come: the loop serves other batches, and peers, between the steps.
TEST(HierarchicalStep, WritesNoMoreThanItsShareOfTheMemory) {
  constexpr int64_t at_once = 32;
  constexpr int64_t chunks = 40;
  constexpr int64_t local_ranks = 8;
  std::shared_ptr<AllAtOnce> of_first_rank;
  const auto body = [&](const World& world, HierarchicalAllreduce& op) {
    const int64_t elements = chunks * kMessageBytes;
    const auto memory = world.allocate(static_cast<size_t>(elements));
    auto* const numbers = reinterpret_cast<int8_t*>(memory.get());
    std::fill_n(numbers, elements, int8_t{1});
    core::Batch batch;
    batch.dtype = DataType::Int8;
    batch.count = elements;
    batch.input = batch.output = memory.get();
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(op.start(batch));
    if (world.rank == 0) {  // drives all chunks of its host
      int64_t most_in_step = 0;
      for (bool done = false; !done;) {
        const int64_t before = of_first_rank->taken();
        done = in_flight.front()->step() == core::Progress::Done;
        most_in_step = std::max(most_in_step, of_first_rank->taken() - before);
      }
      EXPECT_LE(most_in_step * kMessageBytes * local_ranks, 4 << 20) << most_in_step << " chunks";
    } else {
      std::mt19937_64 random(1);
      drive(world, std::move(in_flight), random);
    }
    EXPECT_EQ(std::count(numbers, numbers + elements, local_ranks + 1), elements);
  };
  std::vector<int> hosts(local_ranks, 0);
  hosts.push_back(1);
  with_hosts(hosts, body, [&](MessageHub& hub, int rank) -> std::shared_ptr<Messages> {
    if (rank > 0) return thread_messages(hub, rank);
    of_first_rank = std::make_shared<AllAtOnce>(hub, rank, at_once);
    return of_first_rank;
  });
}

}  // namespace
}  // namespace horon::ops
