// The collectives in shared memory among threads of one process: the same code under
// ThreadSanitizer.
#include <algorithm>

#include <gtest/gtest.h>

#include "horon/core/host/local_subgroup.h"
#include "horon/ops/host/block_transfer.h"
#include "horon/ops/host/piece_allreduce.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/host/shared_memory_exchange.h"
#include "horon/tests/ops/op_contract.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

// Each thread is a rank, with `area_bytes` that all of them share.
void with_groups(int size, size_t area_bytes,
                 const std::function<void(const World& world, core::LocalGroup& group)>& body,
                 core::LocalGroup::ProcessCopies copies = core::LocalGroup::ProcessCopies::Off) {
  core::InProcessJob job(size);
  core::run_ranks(size, [&](int rank) {
    const auto group = core::LocalGroup::create(job.of(rank), area_bytes, copies);
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    World world;
    world.rank = rank;
    world.size = size;
    world.doorbell = &group->doorbell(rank);
    world.allocate = [&](size_t bytes) { return group->allocate(bytes); };
    world.gather = [&](uint64_t mine) {
      return core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, mine);
    };
    body(world, *group);
    world.gather(0);
  });
}

using Body = std::function<void(const World& world, SharedMemoryAllreduce& op)>;

void with_threads(int size, const Body& body) {
  with_groups(size, SharedMemoryAllreduce::area_bytes(size),
              [&](const World& world, core::LocalGroup& group) {
                SharedMemoryAllreduce op(group, group.area());
                body(world, op);
              });
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, Allreduce) {
  with_threads(GetParam(), [](const World& world, SharedMemoryAllreduce& op) {
    check_long_allreduce(world, op, 70007);
    check_same_bits(world, op);
    check_nan(world, op);
    check_scales(world, op);
  });
}

TEST_P(Threads, PiecesThatAreAskedFor) {
  with_threads(GetParam(), [](const World& world, SharedMemoryAllreduce& op) {
    check_pieces(world, op, 70007);
  });
}

TEST_P(Threads, ManyInFlight) {
  with_threads(GetParam(), [](const World& world, SharedMemoryAllreduce& op) {
    check_many_in_flight(world, op, 16);
  });
}

class BlockThreads : public testing::TestWithParam<int> {};

void check_all_kinds(int size, core::LocalGroup::ProcessCopies copies) {
  with_groups(
      size, BlockExchange::area_bytes(size),
      [](const World& world, core::LocalGroup& group) {
        const auto exchange = std::make_shared<BlockExchange>(group, group.area(), true);
        SharedMemoryExchange broadcast(exchange, CollectiveKind::Broadcast);
        check_broadcast(world, broadcast);
        SharedMemoryExchange allgather(exchange, CollectiveKind::Allgather);
        check_allgather(world, allgather);
        SharedMemoryExchange reducescatter(exchange, CollectiveKind::Reducescatter);
        check_reducescatter(world, reducescatter);
        for (const CollectiveKind kind :
             {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
          SharedMemoryExchange op(exchange, kind);
          check_exchange(world, op, kind);
        }
      },
      copies);
}

TEST_P(BlockThreads, AllKinds) {
  check_all_kinds(GetParam(), core::LocalGroup::ProcessCopies::Off);
}

// Threads of one process copy by themselves what the kernel copies between processes.
TEST_P(BlockThreads, AllKindsBetweenPrivateMemories) {
  check_all_kinds(GetParam(), core::LocalGroup::ProcessCopies::IfAllowed);
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, Threads, testing::Values(1, 2, 3, 4, 7));
INSTANTIATE_TEST_SUITE_P(SharedMemory, BlockThreads, testing::Values(1, 2, 5));

// Two process sets of one host with a rank in common, at the same time.
TEST(SharedMemory, OverlappingSubgroups) {
  core::InProcessJob job(3);
  core::run_ranks(3, [&](int rank) {
    const std::shared_ptr<core::LocalGroup> group = core::LocalGroup::create(job.of(rank), 0);
    std::mt19937_64 random(static_cast<uint64_t>(rank));
    const size_t bytes = SharedMemoryAllreduce::area_bytes(2);
    const auto low = core::make_local_subgroup(
        group, job.of(rank), rank < 2 ? std::vector{0, 1} : std::vector<int>{}, bytes);
    const auto high = core::make_local_subgroup(
        group, job.of(rank), rank > 0 ? std::vector{1, 2} : std::vector<int>{}, bytes);
    World world;
    world.doorbell = &group->doorbell(rank);
    std::vector<std::unique_ptr<SharedMemoryAllreduce>> ops;
    for (const auto& part : {low.get(), high.get()}) {
      if (part != nullptr) {
        ops.push_back(std::make_unique<SharedMemoryAllreduce>(*part, part->area()));
      }
    }
    std::vector<std::vector<float>> values;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    for (const int64_t count : {4, 1000, 40'000, 4, 1000, 40'000}) {
      for (const auto& op : ops) {
        auto& data = values.emplace_back(static_cast<size_t>(count), static_cast<float>(rank + 1));
        auto* const memory = reinterpret_cast<std::byte*>(data.data());
        core::Batch batch;
        batch.input = batch.output = memory;
        batch.count = count;
        in_flight.push_back(op->start(std::move(batch)));
      }
    }
    drive(world, std::move(in_flight), random);
    for (size_t i = 0; i < values.size(); ++i) {
      const bool is_high = rank == 2 || (rank == 1 && i % 2 == 1);
      for (const float value : values[i]) ASSERT_EQ(value, is_high ? 5 : 3);
    }
    (void)core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, 0);
  });
}

// The ranks' bit masks have more than one word.
TEST(SharedMemory, SeventyRanks) {
  with_threads(70, [](const World& world, SharedMemoryAllreduce& op) {
    check_long_allreduce(world, op, 50);
    check_long_allreduce(world, op, 1000);
  });
}

// All rings of a host together have a limit, so with many ranks the pieces get short. A ring that
// several ranks read has longer ones.
TEST(SharedMemory, RingsOfManyRanksAreBounded) {
  for (const bool one_for_all : {true, false}) {
    for (int64_t ranks = 1; ranks <= 128; ++ranks) {
      const int64_t piece = ring_piece_bytes(static_cast<int>(ranks), one_for_all);
      const int64_t rings = ranks * (one_for_all ? 1 : ranks - 1);
      const int64_t longest = one_for_all && ranks > 2 ? 256 << 10 : 64 << 10;
      const bool longest_fits = rings * longest * static_cast<int64_t>(kRingPieces) <= 64 << 20;
      EXPECT_LE(rings * piece * static_cast<int64_t>(kRingPieces), 64 << 20) << ranks;
      EXPECT_GE(piece, 1 << 10);
      EXPECT_EQ(piece % 64, 0);
      EXPECT_LE(piece, longest);
      if (longest_fits) {
        EXPECT_EQ(piece, longest) << ranks << " ranks, one ring: " << one_for_all;
      }
    }
  }
}

// Each rank decides by itself who copies, from what both have published.
TEST(SharedMemory, WhoCopiesGoesByWhatCanBeReached) {
  const auto way = [](Reached input, Reached output, bool reduces) {
    ExchangeMember from{};
    ExchangeMember to{};
    from.input_reached = input;
    to.output_reached = output;
    return way_between(from, to, reduces);
  };
  for (const bool reduces : {false, true}) {
    for (const Reached output : {Reached::Mapped, Reached::ByKernel, Reached::ByNobody}) {
      const bool pushes = output != Reached::ByNobody && !reduces;
      EXPECT_EQ(way(Reached::InCell, output, reduces), Way::Pull);
      for (const Reached input : {Reached::Mapped, Reached::ByKernel}) {
        EXPECT_EQ(way(input, output, reduces), pushes ? Way::Together : Way::Pull);
      }
      EXPECT_EQ(way(Reached::ByNobody, output, reduces), pushes ? Way::Push : Way::Ring);
    }
  }
}

// Pieces that are shorter than those of few ranks, and blocks of more pieces than a ring holds.
TEST(SharedMemory, AlltoallOfManyRanks) {
  constexpr int kRanks = 30;
  static constexpr int64_t kCount = 30'000;
  with_groups(kRanks, BlockExchange::area_bytes(kRanks),
              [](const World& world, core::LocalGroup& group) {
                BlockExchange exchange(group, group.area(), true);
                const auto value = [](int from, int to, int64_t at) {
                  return static_cast<float>(from * 64 + to) + static_cast<float>(at % 1000) * 8192;
                };
                std::vector<float> input;
                std::vector<float> expected;
                for (int other = 0; other < kRanks; ++other) {
                  for (int64_t at = 0; at < kCount; ++at) {
                    input.push_back(value(world.rank, other, at));
                    expected.push_back(value(other, world.rank, at));
                  }
                }
                std::vector<float> output(input.size());
                core::Batch batch;
                batch.kind = CollectiveKind::Alltoall;
                batch.send_counts = batch.receive_counts = std::vector<int64_t>(kRanks, kCount);
                batch.count = static_cast<int64_t>(input.size());
                batch.input = reinterpret_cast<std::byte*>(input.data());
                batch.output = reinterpret_cast<std::byte*>(output.data());
                std::vector<std::unique_ptr<core::InFlight>> in_flight;
                in_flight.push_back(exchange.start(std::move(batch)));
                std::mt19937_64 random(static_cast<uint64_t>(world.rank));
                drive(world, std::move(in_flight), random);
                EXPECT_TRUE(output == expected) << world.rank;
              });
}

// Rank 1 gives its part of many collectives and ends none of them. Rank 0 gets as far as there are
// cells. Then it must wait until rank 1 has left the first cell, which wakes it.
void check_wait_for_a_cell(
    size_t area_bytes, int64_t count,
    const std::function<std::unique_ptr<core::CollectiveOp>(core::LocalGroup& group)>& make_op,
    CollectiveKind kind = CollectiveKind::Allreduce) {
  with_groups(2, area_bytes, [&](const World& world, core::LocalGroup& group) {
    constexpr size_t kCalls = 20;
    const auto op = make_op(group);
    std::vector<std::shared_ptr<std::byte>> inputs, outputs;
    const auto start = [&] {
      const auto bytes = static_cast<size_t>(count) * sizeof(float);
      std::byte* const input = inputs.emplace_back(world.allocate(bytes)).get();
      std::fill_n(reinterpret_cast<float*>(input), count, static_cast<float>(inputs.size()));
      core::Batch batch;
      batch.kind = kind;
      batch.count = count;
      batch.input = input;
      batch.output = outputs.emplace_back(world.allocate(bytes)).get();
      if (kind != CollectiveKind::Allreduce) {
        batch.send_counts = batch.receive_counts = std::vector<int64_t>(2, count / 2);
      }
      return op->start(std::move(batch));
    };
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    while (world.rank == 1 && in_flight.size() < kCalls) in_flight.push_back(start());
    (void)world.gather(0);
    while (world.rank == 0 && in_flight.empty() && outputs.size() < kCalls) {
      auto flight = start();
      core::Progress progress = core::Progress::Advanced;
      while (progress == core::Progress::Advanced) progress = flight->step();
      if (progress == core::Progress::Ringing) in_flight.push_back(std::move(flight));
    }
    if (world.rank == 0) {
      EXPECT_GT(outputs.size(), 1U);
      EXPECT_LT(outputs.size(), kCalls);
      (void)world.doorbell->take();
    }
    (void)world.gather(0);
    if (world.rank == 0) {
      EXPECT_TRUE(world.doorbell->wait(kLongEnough, {})) << "no ring";
    }
    while (outputs.size() < kCalls) in_flight.push_back(start());
    std::mt19937_64 random(static_cast<uint64_t>(world.rank));
    drive(world, std::move(in_flight), random);
    for (size_t call = 0; call < kCalls; ++call) {
      const auto* const got = reinterpret_cast<const float*>(outputs[call].get());
      const auto value = static_cast<float>(1 + call);
      const float expected = kind == CollectiveKind::Allreduce ? 2 * value : value;
      EXPECT_EQ(std::count(got, got + count, expected), count) << call;
    }
  });
}

TEST(SharedMemory, ARankThatIsAheadWaitsForACell) {
  const auto allreduce = [](core::LocalGroup& group) {
    return std::make_unique<SharedMemoryAllreduce>(group, group.area());
  };
  for (const int64_t count : {4, 100'000}) {
    check_wait_for_a_cell(SharedMemoryAllreduce::area_bytes(2), count, allreduce);
  }
  const auto alltoall = [](core::LocalGroup& group) {
    return std::make_unique<SharedMemoryExchange>(
        std::make_shared<BlockExchange>(group, group.area(), true), CollectiveKind::Alltoall);
  };
  for (const int64_t count : {4, 100'000}) {
    check_wait_for_a_cell(BlockExchange::area_bytes(2), count, alltoall, CollectiveKind::Alltoall);
  }
}

// Rank 2 begins when rank 1 has ended. Each of them exchanges with the root only.
TEST(SharedMemory, OthersThanTheRootDoNotWaitForEachOther) {
  constexpr int kRanks = 3;
  static constexpr int64_t kCount = 100'000;
  with_groups(kRanks, BlockExchange::area_bytes(kRanks),
              [](const World& world, core::LocalGroup& group) {
                const bool is_root = world.rank == 0;
                BlockExchange exchange(group, group.area(), true);
                for (const CollectiveKind kind :
                     {CollectiveKind::Broadcast, CollectiveKind::Gather, CollectiveKind::Scatter}) {
                  const auto memory = world.allocate(2 * kRanks * kCount * sizeof(float));
                  auto* const input = reinterpret_cast<float*>(memory.get());
                  float* const output = input + kRanks * kCount;
                  for (int64_t i = 0; i < kRanks * kCount; ++i) {
                    input[i] = static_cast<float>(world.rank + 1);
                    output[i] = 0;
                  }
                  core::Batch batch;
                  batch.kind = kind;
                  batch.count = kCount;
                  batch.input = reinterpret_cast<std::byte*>(input);
                  batch.output = reinterpret_cast<std::byte*>(output);
                  const std::vector<int64_t> with_all(kRanks, kCount);
                  const std::vector<int64_t> with_root{kCount, 0, 0};
                  const std::vector<int64_t> with_none(kRanks, 0);
                  const bool gathers = kind == CollectiveKind::Gather;
                  batch.send_counts = gathers ? with_root : is_root ? with_all : with_none;
                  batch.receive_counts = !gathers ? with_root : is_root ? with_all : with_none;
                  std::mt19937_64 random(static_cast<uint64_t>(world.rank));
                  std::vector<std::unique_ptr<core::InFlight>> in_flight;
                  if (world.rank == 2) (void)world.gather(0);
                  in_flight.push_back(exchange.start(std::move(batch)));
                  if (is_root) (void)world.gather(0);
                  drive(world, std::move(in_flight), random);
                  if (world.rank == 1) (void)world.gather(0);
                  for (int64_t i = 0; gathers && is_root && i < kRanks * kCount; ++i) {
                    ASSERT_EQ(output[i], static_cast<float>(i / kCount + 1)) << i;
                  }
                  for (int64_t i = 0; !gathers && i < kCount; ++i) ASSERT_EQ(output[i], 1) << i;
                }
              });
}

TEST(SharedMemory, PiecesAreAlignedAndBounded) {
  for (const int ranks : {1, 2, 3, 8, 64, 1000}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{8193}, int64_t{1} << 20, int64_t{1} << 40}) {
      const int64_t piece = PieceAllreduce::piece_bytes(bytes, ranks);
      EXPECT_EQ(piece % 64, 0);
      EXPECT_GE(piece, 32 << 10);
      EXPECT_LE(piece, 256 << 10);
      const core::PieceSizes sizes = PieceAllreduce::piece_sizes(bytes, ranks);
      EXPECT_EQ(sizes.usual, piece);
      EXPECT_LE(sizes.least, piece);
      EXPECT_GE(sizes.most, piece);
      for (const int64_t wish : {int64_t{1}, int64_t{4097}, int64_t{1} << 17, int64_t{1} << 62}) {
        const int64_t wished = PieceAllreduce::piece_bytes(bytes, ranks, wish);
        EXPECT_EQ(wished % 64, 0);
        EXPECT_EQ(wished, std::clamp(wish, sizes.least, sizes.most) / 64 * 64);
        // What is done in one go must not hold up the loop, but with so many ranks it is longer.
        EXPECT_LE(wished * std::min(ranks, 64), 2 << 20);
      }
    }
  }
}

}  // namespace
}  // namespace horon::ops
