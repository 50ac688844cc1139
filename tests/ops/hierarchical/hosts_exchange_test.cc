// Broadcast, allgather and reducescatter between hosts among threads of one process: the same code
// under ThreadSanitizer.
#include "horon/ops/hierarchical/hosts_exchange.h"

#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/ops/hierarchical/host_cells.h"
#include "horon/tests/ops/hierarchical/thread_hosts.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/quick_messages.h"
#include "horon/tests/support/tag_check.h"

namespace horon::ops {
namespace {

class HostsExchangeThreads : public testing::TestWithParam<std::vector<int>> {};

TEST_P(HostsExchangeThreads, Broadcast) {
  with_thread_hosts(GetParam(), [](const World& world, const BetweenHosts& parts) {
    HierarchicalExchange op(std::make_shared<HostsExchange>(parts), CollectiveKind::Broadcast);
    EXPECT_EQ(op.name(), "hier_broadcast");
    EXPECT_NE(op.refusal({.kind = CollectiveKind::Allgather}), "");
    check_broadcast(world, op);
  });
}

TEST_P(HostsExchangeThreads, Allgather) {
  with_thread_hosts(GetParam(), [](const World& world, const BetweenHosts& parts) {
    HierarchicalExchange op(std::make_shared<HostsExchange>(parts), CollectiveKind::Allgather);
    check_allgather(world, op);
  });
}

TEST_P(HostsExchangeThreads, Reducescatter) {
  with_thread_hosts(GetParam(), [](const World& world, const BetweenHosts& parts) {
    HierarchicalExchange op(std::make_shared<HostsExchange>(parts), CollectiveKind::Reducescatter);
    check_reducescatter(world, op);
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, HostsExchangeThreads,
                         testing::Values(std::vector{0, 0, 1}, std::vector{0, 1, 0, 1, 0}),
                         layout_name);

// Among three hosts and more the sums go in a ring.
class ReductionToOneThreads : public testing::TestWithParam<std::vector<int>> {};

TEST_P(ReductionToOneThreads, IsRight) {
  with_thread_hosts(GetParam(), [](const World& world, const BetweenHosts& parts) {
    HierarchicalExchange op(std::make_shared<HostsExchange>(parts), CollectiveKind::Reducescatter);
    check_reduction_to_one(world, op);
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, ReductionToOneThreads,
                         testing::Values(std::vector{0, 1}, std::vector{0, 1, 2},
                                         std::vector{0, 0, 1, 1, 2}, std::vector{0, 1, 2, 3}),
                         layout_name);

// The program may read what it gives, and that may lie in read-only memory. Each of the two lanes
// drives some of the chunks.
TEST(HostsExchange, ABroadcastInPlaceOnlyReadsAtItsRoot) {
  constexpr size_t kBytes = size_t{1} << 20;
  void* const page =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const given = static_cast<std::byte*>(page);
  std::memset(given, 7, kBytes);
  ASSERT_EQ(mprotect(page, kBytes, PROT_READ), 0);
  with_thread_hosts({0, 0, 1, 1}, [&](const World& world, const BetweenHosts& parts) {
    HostsExchange exchange(parts);
    std::vector<std::byte> received(kBytes);
    core::Batch batch;
    batch.kind = CollectiveKind::Broadcast;
    batch.dtype = DataType::UInt8;
    batch.count = kBytes;
    batch.output = world.rank == 0 ? given : received.data();
    batch.input = batch.output;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(exchange.start(batch));
    std::mt19937_64 random(1);
    drive(world, std::move(in_flight), random);
    EXPECT_EQ(std::memcmp(batch.output, given, kBytes), 0);
  });
  munmap(page, kBytes);
}

core::Batch ones(CollectiveKind kind, const World& world, int64_t elements,
                 std::vector<int32_t>& input, std::vector<int32_t>& output) {
  const bool gathers = kind == CollectiveKind::Allgather;
  const bool reduces = kind == CollectiveKind::Reducescatter;
  input.assign(static_cast<size_t>(elements * (reduces ? world.size : 1)), 1);
  output.assign(static_cast<size_t>(elements * (gathers ? world.size : 1)), 0);
  core::Batch batch;
  batch.kind = kind;
  batch.dtype = DataType::Int32;
  batch.count = elements;
  const std::vector<int64_t> counts(static_cast<size_t>(world.size), elements);
  if (gathers) batch.receive_counts = counts;
  if (reduces) batch.send_counts = counts;
  batch.input = reinterpret_cast<const std::byte*>(input.data());
  batch.output = reinterpret_cast<std::byte*>(output.data());
  return batch;
}

// Returns what all ranks together have sent to other hosts; in bytes.
int64_t sent_by_all(const std::vector<int>& hosts, CollectiveKind kind, int64_t elements,
                    bool delays = false) {
  std::vector<std::shared_ptr<TagCheck>> wires(hosts.size());
  const auto body = [&](const World& world, const BetweenHosts& parts) {
    HostsExchange exchange(parts);
    std::vector<int32_t> input;
    std::vector<int32_t> output;
    core::Batch batch = ones(kind, world, elements, input, output);
    const size_t output_bytes = output.size() * sizeof(int32_t);
    std::shared_ptr<std::byte> shared_input, shared_output;
    if (delays) {  // a lane may be further ahead of another one if nothing is staged
      shared_input = world.allocate(input.size() * sizeof(int32_t));
      shared_output = world.allocate(output_bytes);
      std::memcpy(shared_input.get(), input.data(), input.size() * sizeof(int32_t));
      batch.input = shared_input.get();
      batch.output = shared_output.get();
    }
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(exchange.start(std::move(batch)));
    std::mt19937_64 random(1);
    drive(world, std::move(in_flight), random);
    if (delays) std::memcpy(output.data(), shared_output.get(), output_bytes);
    const int32_t each = kind == CollectiveKind::Reducescatter ? world.size : 1;
    EXPECT_TRUE(all_are(output, each));
  };
  with_thread_hosts(hosts, body, [&](MessageHub& hub, int rank) {
    const auto wire = std::make_shared<TagCheck>(hub, rank);
    if (delays && rank == 1) wire->delay_first_receive();
    wires[static_cast<size_t>(rank)] = wire;
    return wire;
  });
  int64_t sent = 0;
  for (const auto& wire : wires) {
    EXPECT_LT(wire->largest_tag(), Messages::kTags);
    sent += wire->sent();
  }
  return sent;
}

TEST(HostsExchange, SendsNothingTwiceToAHost) {
  constexpr int64_t elements = 100'000;
  constexpr auto bytes = static_cast<int64_t>(elements * sizeof(int32_t));
  EXPECT_EQ(sent_by_all({0, 0, 0, 1, 1, 1}, CollectiveKind::Broadcast, elements), bytes);
  EXPECT_EQ(sent_by_all({0, 0, 1, 1, 2}, CollectiveKind::Broadcast, elements), 2 * bytes);
  // The block of each of five ranks goes to the two other hosts, or comes from them.
  EXPECT_EQ(sent_by_all({0, 0, 1, 1, 2}, CollectiveKind::Allgather, elements), 10 * bytes);
  EXPECT_EQ(sent_by_all({0, 0, 1, 1, 2}, CollectiveKind::Reducescatter, elements), 10 * bytes);
}

// The most bytes that one rank receives of a reducescatter of int32.
int64_t most_received(const std::vector<int>& hosts, const std::vector<int64_t>& blocks) {
  std::vector<std::shared_ptr<TagCheck>> wires(hosts.size());
  const auto body = [&](const World& world, const BetweenHosts& parts) {
    HostsExchange exchange(parts);
    std::vector<int32_t> input(std::accumulate(blocks.begin(), blocks.end(), size_t{0}), 1);
    std::vector<int32_t> output(static_cast<size_t>(blocks[static_cast<size_t>(world.rank)]));
    core::Batch batch;
    batch.kind = CollectiveKind::Reducescatter;
    batch.dtype = DataType::Int32;
    batch.count = std::ssize(output);
    batch.send_counts = blocks;
    batch.input = reinterpret_cast<const std::byte*>(input.data());
    batch.output = reinterpret_cast<std::byte*>(output.data());
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(exchange.start(batch));
    std::mt19937_64 random(1);
    drive(world, std::move(in_flight), random);
    EXPECT_TRUE(all_are(output, world.size));
  };
  with_thread_hosts(hosts, body, [&](MessageHub& hub, int rank) {
    return wires[static_cast<size_t>(rank)] = std::make_shared<TagCheck>(hub, rank);
  });
  int64_t most = 0;
  for (const auto& wire : wires) most = std::max(most, wire->received());
  return most;
}

// The second lane of each host has no chunk but one of nothing.
TEST(HostsExchange, ALaneMayEndWithAChunkOfNothing) {
  EXPECT_EQ(most_received({0, 0, 1, 1}, {700, 0, 300, 0}), 2800);
}

// Data that only a few ranks get is relayed, so that no link carries it from all other hosts. If
// all ranks get about as much, or if it is short, it is sent directly.
TEST(HostsExchange, AReductionToFewIsRelayed) {
  EXPECT_EQ(most_received({0, 1, 2, 3}, {0, 100'000, 0, 0}), 400'000);
  EXPECT_EQ(most_received({0, 1, 2, 3}, {40'000, 0, 0, 60'000}), 400'000);
  EXPECT_EQ(most_received({0, 1, 2, 3}, {40'000, 20'000, 20'000, 40'000}), 480'000);
  EXPECT_EQ(most_received({0, 1, 2, 3}, {0, 10'000, 0, 0}), 120'000);
  EXPECT_EQ(most_received({0, 1}, {100'000, 0}), 400'000);
}

bool may_be_cut(const std::vector<int>& hosts, const std::vector<int64_t>& blocks,
                WireType wire_type = DataType::Float32) {
  std::vector<char> may(hosts.size());
  with_thread_hosts(hosts, [&](const World& world, BetweenHosts parts) {
    parts.wire_type = wire_type;
    core::Batch batch;
    batch.kind = CollectiveKind::Reducescatter;
    batch.send_counts = blocks;
    may[static_cast<size_t>(world.rank)] = HostsExchange(parts).same_in_parts(batch) ? 1 : 0;
  });
  EXPECT_TRUE(all_are(may, may.front()));
  return may.front() != 0;
}

// A ring adds the hosts in another order, so the parts must go the same way as the whole.
TEST(HostsExchange, WhatMayBeCutGoesTheSameWayInParts) {
  EXPECT_TRUE(may_be_cut({0, 1, 2}, {1 << 20, 1 << 20, 1 << 20}));
  EXPECT_TRUE(may_be_cut({0, 1, 2}, {0, 0, 3 << 20}));
  EXPECT_FALSE(may_be_cut({0, 1, 2}, {1 << 20, 3 << 18, 3 << 18}));
  EXPECT_TRUE(may_be_cut({0, 1, 1}, {1 << 20, 3 << 18, 3 << 18}));
  EXPECT_TRUE(may_be_cut({0, 1, 2}, {1 << 20, 1 << 20, (1 << 20) - 1000}));
  EXPECT_FALSE(may_be_cut({0, 1}, {1 << 20, 1 << 20}, DataType::BFloat16))
      << "the sums are rounded";
}

// There are tags for 512 chunks of a lane, also where several lanes share the chunks.
TEST(HostsExchange, AChunkThatIsLateKeepsItsTag) {
  const int64_t elements = kMessageBytes / 4 * 520;
  for (const CollectiveKind kind :
       {CollectiveKind::Broadcast, CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    const int64_t bytes = 4 * elements;
    const bool is_broadcast = kind == CollectiveKind::Broadcast;
    EXPECT_EQ(sent_by_all({0, 1}, kind, elements, true), is_broadcast ? bytes : 2 * bytes);
    const int64_t in_two_lanes = is_broadcast ? elements : elements / 4;
    EXPECT_EQ(sent_by_all({0, 1, 0, 1}, kind, in_two_lanes, true), bytes);
  }
}

// Memory that the others can't map is copied through a window, however long the tensor is.
TEST(HostsExchange, TakesLittleScratchMemoryForALongTensor) {
  for (const CollectiveKind kind :
       {CollectiveKind::Broadcast, CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    const auto body = [&](const World& world, const BetweenHosts& parts) {
      HostsExchange exchange(parts);
      std::vector<int32_t> input;
      std::vector<int32_t> output;
      std::vector<std::unique_ptr<core::InFlight>> in_flight;
      in_flight.push_back(exchange.start(ones(kind, world, 4 << 20, input, output)));
      std::mt19937_64 random(1);
      drive(world, std::move(in_flight), random);
    };
    EXPECT_LT(with_thread_hosts({0, 0, 1}, body), size_t{16} << 20);
  }
}

// Each message costs the same, however short. A broadcast has no sums that could take long.
TEST(HostsExchange, MessagesOfABroadcastAreLongAmongManyHosts) {
  std::vector<int> hosts(64);
  std::iota(hosts.begin(), hosts.end(), 0);
  std::vector<std::unique_ptr<core::MemoryDomain>> domains;
  domains.push_back(std::make_unique<HostMemory>(nullptr));
  BetweenHosts parts;
  parts.topology = core::make_topology(0, hosts);
  const auto messages = std::make_shared<QuickMessages>();
  parts.messages = messages;
  parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
  HostsExchange exchange(parts);
  World world;
  world.size = 64;
  std::vector<int32_t> input;
  std::vector<int32_t> output;
  const auto run = exchange.start(ones(CollectiveKind::Broadcast, world, 1 << 18, input, output));
  while (run->step() != core::Progress::Done) {
  }
  EXPECT_EQ(messages->longest(), kMessageBytes);
}

// The second call of progress() fails, and all calls after it.
class FailingMessages final : public Messages {
 public:
  FailingMessages(MessageHub& hub, int rank) : messages_(hub, rank) {}
  Id send(int to, int tag, const std::byte* data, int64_t bytes) override {
    check();
    return messages_.send(to, tag, data, bytes);
  }
  Id receive(int from, int tag, std::byte* data, int64_t bytes) override {
    check();
    return messages_.receive(from, tag, data, bytes);
  }
  void progress() override {
    ++calls_;
    check();
    messages_.progress();
  }
  bool take_if_over(Id id) override {
    check();
    return messages_.take_if_over(id);
  }

 private:
  void check() const {
    if (calls_ > 1) throw Error(ErrorCode::OperationFailed, "a planted failure");
  }
  ThreadMessages messages_;
  int calls_ = 0;
};

// Two batches are in flight, and each of them gets the error.
TEST(HostsExchange, AnErrorOfOneMessageIsTheErrorOfEveryBatch) {
  MessageHub hub;
  for (const CollectiveKind kind :
       {CollectiveKind::Broadcast, CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(nullptr));
    BetweenHosts parts;
    parts.topology = core::make_topology(0, std::array{0, 1});
    parts.messages = std::make_shared<FailingMessages>(hub, 0);
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    HostsExchange exchange(parts);
    World world;
    world.size = 2;
    std::vector<int32_t> input;
    std::vector<int32_t> output;
    auto first = exchange.start(ones(kind, world, 1 << 20, input, output));
    auto second = exchange.start(ones(kind, world, 1 << 20, input, output));
    const auto step_on = [](core::InFlight& batch) {
      for (int step = 0; step < 10; ++step) batch.step();
    };
    EXPECT_THROW(step_on(*first), Error);
    EXPECT_THROW(step_on(*second), Error);
  }
}

// Nobody waits for the others in an exchange of nothing. So rank 0 gets as far as there are cells,
// while rank 1 has left none. Then it waits until rank 1 has left the first, which wakes it.
TEST(HostsExchangeCells, ARankThatIsAheadWaitsForACell) {
  with_thread_hosts({0, 0, 1}, [](const World& world, const BetweenHosts& parts) {
    constexpr int kCalls = 20;
    HostsExchange exchange(parts);
    core::Batch nothing;
    nothing.kind = CollectiveKind::Allgather;
    nothing.receive_counts = std::vector<int64_t>(3, 0);
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    int started = 0;
    while (world.rank == 0 && in_flight.empty() && started < kCalls) {
      auto flight = exchange.start(nothing);
      ++started;
      if (flight->step() != core::Progress::Done) in_flight.push_back(std::move(flight));
    }
    if (world.rank == 0) {
      EXPECT_GT(started, 1);
      EXPECT_LT(started, kCalls);
    }
    (void)world.gather(0);
    // Uses up what rank 0 has announced for its exchanges that are over.
    if (world.rank == 1) HostCells(*parts.group, parts.area).progress().wake_all();
    (void)world.gather(0);
    if (world.rank == 0) (void)world.doorbell->take();
    (void)world.gather(0);
    if (world.rank == 0) {
      EXPECT_TRUE(world.doorbell->wait(kLongEnough, {})) << "no ring";
    }
    for (; started < kCalls; ++started) in_flight.push_back(exchange.start(nothing));
    std::mt19937_64 random(static_cast<uint64_t>(world.rank));
    drive(world, std::move(in_flight), random);
  });
}

}  // namespace
}  // namespace horon::ops
