// The allreduce over several hosts among threads of one process, which act as ranks of those hosts:
// the same code under ThreadSanitizer.
#include <cstring>
#include <numeric>

#include <gtest/gtest.h>

#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/host_share.h"
#include "horon/ops/hierarchical/message_exchange.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/hierarchical/thread_hosts.h"

namespace horon::ops {
namespace {

using Body = std::function<void(const World& world, HierarchicalAllreduce& op)>;

size_t with_hosts(const std::vector<int>& hosts, const Body& body) {
  return with_thread_hosts(hosts, [&](const World& world, const BetweenHosts& parts) {
    HierarchicalAllreduce op(parts);
    body(world, op);
  });
}

// Each thread is a host of its own; shared hosts do not matter here.
class ExchangeThreads : public testing::TestWithParam<int> {};

TEST_P(ExchangeThreads, AllKinds) {
  const int size = GetParam();
  MessageHub hub;
  std::vector<int> hosts(static_cast<size_t>(size));
  std::iota(hosts.begin(), hosts.end(), 0);
  core::InProcessJob job(hosts);
  core::run_ranks(size, [&](int rank) {
    const auto exchange =
        std::make_shared<MessageExchange>(std::make_shared<ThreadMessages>(hub, rank), rank, size);
    World world;
    world.rank = rank;
    world.size = size;
    world.gather = [&](uint64_t mine) {
      return core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, mine);
    };
    for (const CollectiveKind kind :
         {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
      HierarchicalExchange op(exchange, kind);
      check_exchange(world, op, kind);
    }
  });
  EXPECT_TRUE(hub.empty());
}

INSTANTIATE_TEST_SUITE_P(Hosts, ExchangeThreads, testing::Values(1, 2, 4));

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
    check_unwanted_outputs(world, op);
  });
}

TEST_P(HierarchicalThreads, PiecesThatAreAskedFor) {
  with_hosts(GetParam(), [](const World& world, HierarchicalAllreduce& op) {
    check_pieces(world, op, 150'007);
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

// Rank r's element i is r + i modulo a prime, so that no two pieces are alike. Made and compared a
// period at a time, because a sanitizer checks each element that a loop reads.
class PeriodicNumbers {
 public:
  // Element i is `first + factor * (i % kPeriod)`.
  PeriodicNumbers(int32_t first, int32_t factor) {
    for (int32_t i = 0; i < kPeriod; ++i) period_.push_back(first + factor * i);
  }
  void put(std::vector<int32_t>& numbers) const {
    for_each_part(numbers,
                  [&](int32_t* to, size_t bytes) { std::memcpy(to, period_.data(), bytes); });
  }
  bool are_in(std::vector<int32_t>& numbers) const {
    bool same = true;
    for_each_part(numbers, [&](const int32_t* from, size_t bytes) {
      same = same && std::memcmp(from, period_.data(), bytes) == 0;
    });
    return same;
  }

 private:
  static constexpr int32_t kPeriod = 100'003;

  template <class Visit>
  static void for_each_part(std::vector<int32_t>& numbers, const Visit& visit) {
    for (size_t begin = 0; begin < numbers.size(); begin += kPeriod) {
      const size_t count = std::min<size_t>(kPeriod, numbers.size() - begin);
      visit(&numbers[begin], count * sizeof(int32_t));
    }
  }

  std::vector<int32_t> period_;
};

// Memory that the others can't map is copied through a window, however long the tensor is.
// Also in the longest chunks that can be asked for.
TEST(HierarchicalStaging, TakesLittleScratchMemoryForALongTensor) {
  int64_t piece_bytes = 0;
  const auto body = [&](const World& world, HierarchicalAllreduce& op) {
    std::vector<int32_t> numbers(size_t{8} << 20);  // 32 MiB
    PeriodicNumbers(world.rank, 1).put(numbers);
    core::Batch batch;
    batch.dtype = DataType::Int32;
    batch.count = std::ssize(numbers);
    batch.piece_bytes = piece_bytes;
    batch.output = reinterpret_cast<std::byte*>(numbers.data());
    batch.input = batch.output;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(op.start(std::move(batch)));
    std::mt19937_64 random(1);
    drive(world, std::move(in_flight), random);
    const int32_t ranks = world.size * (world.size - 1) / 2;
    EXPECT_TRUE(PeriodicNumbers(ranks, world.size).are_in(numbers)) << "rank " << world.rank;
  };
  for (const int64_t wish : {int64_t{0}, int64_t{1} << 40}) {
    piece_bytes = wish;
    EXPECT_LT(with_hosts({0, 0, 1}, body), size_t{16} << 20) << wish;
    EXPECT_LT(with_hosts({0, 1, 0, 1}, body), size_t{16} << 20) << wish;
  }
}

// Rank 1 copies its input or its output, and sleeps while its window is full. Nobody but the driver
// of the chunks can wake it.
TEST(HierarchicalStaging, ARankThatCopiesOneWayIsRungAsItsWindowEmpties) {
  for (const bool copies_input : {true, false}) {
    with_hosts({0, 0, 1}, [&](const World& world, HierarchicalAllreduce& op) {
      std::vector<int32_t> numbers(size_t{2} << 20);  // twice as many as the window holds
      const size_t bytes = numbers.size() * sizeof(int32_t);
      const std::shared_ptr<std::byte> shared = world.allocate(bytes);
      auto* const own = reinterpret_cast<std::byte*>(numbers.data());
      PeriodicNumbers(world.rank, 1).put(numbers);
      std::memcpy(shared.get(), own, bytes);
      const bool copies = world.rank == 1;
      core::Batch batch;
      batch.dtype = DataType::Int32;
      batch.count = std::ssize(numbers);
      batch.input = copies && copies_input ? own : shared.get();
      batch.output = copies && !copies_input ? own : shared.get();
      std::vector<std::unique_ptr<core::InFlight>> in_flight;
      in_flight.push_back(op.start(std::move(batch)));
      std::mt19937_64 random(1);
      drive(world, std::move(in_flight), random);
      if (copies_input || !copies) std::memcpy(own, shared.get(), bytes);
      EXPECT_TRUE(PeriodicNumbers(3, 3).are_in(numbers)) << "rank " << world.rank;
    });
  }
}

// Local rank 0 gives chunks of 64 bytes, and all ranks take them.
class ChunksOfFirstRank final : public Chunks {
 public:
  explicit ChunksOfFirstRank(int local_rank) : gives_(local_rank == 0) {}
  int64_t count() const override { return 10; }
  int64_t bytes_max() const override { return 64; }
  int at_once() const override { return 4; }
  ChunkPlace place(int64_t index) const override { return {64 * index, 64 * index, 64, 0}; }
  int64_t input_bytes() const override { return gives_ ? 64 * count() : 0; }
  int64_t output_bytes() const override { return 64 * count(); }
  size_t work_bytes() const override { return 0; }
  std::unique_ptr<ChunkWork> make_work(std::byte*) const override { return nullptr; }

 private:
  const bool gives_;
};

// A rank rings those that wait each time that it publishes.
TEST(HierarchicalStaging, ARankThatGivesNothingPublishesAllChunksAtOnce) {
  with_thread_hosts({0, 0, 0, 1}, [](const World& world, const BetweenHosts& parts) {
    if (world.rank == 3) return;  // alone
    const HostsLayout layout = make_hosts_layout(parts.topology);
    HostCells cells(*parts.group, parts.area);
    const ChunksOfFirstRank chunks(layout.local_rank);
    std::vector<std::byte> memory(640);  // the others can't map it
    core::Batch batch;
    batch.input = batch.output = memory.data();
    HostShare share({&layout, &chunks, &batch, &cells, parts.group, parts.scratch.get(), 0});
    ASSERT_TRUE(share.post());
    share.copy();
    // The first rank drives the only lane, and so copies none of its input.
    constexpr int64_t window = 8;  // twice what the lane has under way
    const uint64_t ready = cells.contribution(0, layout.local_rank).ready.load();
    EXPECT_EQ(ready & 0xffffffff, window) << "rank " << world.rank;
    share.leave();
  });
}

// The content of a cell from its earlier use must not be taken for that of this one.
TEST(HierarchicalStaging, ACellIsUsedOnWhenItsUsesBeginAgain) {
  constexpr uint64_t use = uint64_t{1} << 32;
  with_thread_hosts({0, 0, 1}, [](const World& world, const BetweenHosts& parts) {
    const auto all_are_here = [&] { (void)world.gather(0); };
    if (world.rank == 2) {  // alone
      for (int meeting = 0; meeting < 4; ++meeting) all_are_here();
      return;
    }
    const HostsLayout layout = make_hosts_layout(parts.topology);
    HostCells cells(*parts.group, parts.area);
    const ChunksOfFirstRank chunks(layout.local_rank);
    const uint64_t end_of_last_use = ((use - 1) << 32) + 10;
    cells.contribution(0, layout.local_rank).ready = end_of_last_use;
    cells.over(0, layout.local_rank) = end_of_last_use;
    cells.left(0, layout.local_rank) = use - 1;
    std::vector<std::byte> memory(640);  // the others can't map it
    core::Batch batch;
    batch.input = batch.output = memory.data();
    const uint64_t number = (use - 1) * HostCells::kCells;
    HostShare share({&layout, &chunks, &batch, &cells, parts.group, parts.scratch.get(), number});
    all_are_here();
    if (layout.local_rank == 0) {
      EXPECT_TRUE(share.post());
      EXPECT_FALSE(share.is_ready(0)) << "the other rank has published nothing";
    }
    all_are_here();
    if (layout.local_rank == 1) {
      EXPECT_TRUE(share.post());
      EXPECT_GT(share.copy(), 0);
      EXPECT_EQ(share.copy(), 0) << "no chunk is over";
    }
    all_are_here();
    if (layout.local_rank == 0) {
      EXPECT_TRUE(share.is_ready(0));
      share.set_over(1);
    }
    all_are_here();
    if (layout.local_rank == 1) {
      EXPECT_GT(share.copy(), 0) << "the first chunk is over";
    }
    share.leave();
  });
}

// What was summed, and what the others can't reach: also for the next allreduce.
TEST(Hierarchical, ScratchComesBack) {
  with_thread_hosts({0, 0, 1}, [](const World& world, const BetweenHosts& parts) {
    HierarchicalAllreduce op(parts);
    std::mt19937_64 random(static_cast<uint64_t>(world.rank));
    size_t of_first = 0;
    for (uint64_t sequence = 0; sequence < 5; ++sequence) {
      AllreduceRun run(world, {.count = 40'000, .registered = false}, sequence);
      std::vector<std::unique_ptr<core::InFlight>> in_flight;
      in_flight.push_back(op.start(run.batch()));
      drive(world, std::move(in_flight), random);
      run.check();
      if (sequence == 0) of_first = parts.scratch->usage().bytes_peak;
    }
    EXPECT_GT(of_first, 0U);
    EXPECT_EQ(parts.scratch->usage().bytes_peak, of_first);
  });
}

}  // namespace
}  // namespace horon::ops
