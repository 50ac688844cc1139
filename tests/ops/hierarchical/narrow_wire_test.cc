// Reductions of float32 that are rounded to travel between hosts, among threads of one process.
#include <array>
#include <thread>

#include <gtest/gtest.h>

#include "horon/core/execution/executor.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hosts_exchange.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/tests/ops/hierarchical/narrow_wire_contract.h"
#include "horon/tests/ops/hierarchical/thread_hosts.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/tag_check.h"

namespace horon::ops {
namespace {

TEST(WireType, SumsAndAveragesOfLongFloat32MayTravelIn16Bits) {
  const auto of = [](DataType dtype, ReduceOp op, int64_t count) {
    return choose_wire_type(dtype, op, count, true, DataType::BFloat16);
  };
  EXPECT_EQ(of(DataType::Float32, ReduceOp::Sum, 1025), WireType(DataType::BFloat16));
  EXPECT_EQ(of(DataType::Float32, ReduceOp::Average, 1 << 30), WireType(DataType::BFloat16));
  EXPECT_EQ(of(DataType::Float32, ReduceOp::Sum, 1024), WireType(DataType::Float32));
  EXPECT_EQ(of(DataType::Float32, ReduceOp::Max, 1 << 30), WireType(DataType::Float32));
  EXPECT_EQ(of(DataType::Float64, ReduceOp::Sum, 1 << 30), WireType(DataType::Float64));
  EXPECT_EQ(of(DataType::Float16, ReduceOp::Sum, 1 << 30), WireType(DataType::Float16));
  EXPECT_EQ(of(DataType::Int32, ReduceOp::Sum, 1 << 30), WireType(DataType::Int32));
}

TEST(WireType, BlocksOfInt8AreCutAtWholeBlocks) {
  constexpr WireType blocks = WireType::int8_blocks();
  EXPECT_EQ(choose_wire_type(DataType::Float32, ReduceOp::Sum, 1025, true, blocks), blocks);
  EXPECT_EQ(choose_wire_type(DataType::Float32, ReduceOp::Sum, 1024, true, blocks),
            WireType(DataType::Float32));
  EXPECT_EQ(choose_wire_type(DataType::Float32, ReduceOp::Max, 1 << 30, true, blocks),
            WireType(DataType::Float32));
  EXPECT_EQ(choose_wire_type(DataType::Int32, ReduceOp::Sum, 1 << 30, true, blocks),
            WireType(DataType::Int32));
  for (const int64_t bytes : {67, 68, 1000, 56 << 10}) {
    const int64_t elements = blocks.elements_in(bytes);
    EXPECT_EQ(elements % WireType::kAlignment, 0);
    EXPECT_LE(blocks.bytes(elements), bytes);
    EXPECT_GT(blocks.bytes(elements + WireType::kAlignment), bytes);
  }
  EXPECT_EQ(blocks.bytes(65), 2 * sizeof(float) + 65);
  EXPECT_EQ(blocks.bytes(0), 0);
}

TEST(WireType, HasTheNamesOfTheKnob) {
  EXPECT_EQ(wire_type_named("float32"), WireType(DataType::Float32));
  EXPECT_EQ(wire_type_named("bfloat16"), WireType(DataType::BFloat16));
  EXPECT_EQ(wire_type_named("float16"), WireType(DataType::Float16));
}

// Runs these tensors as one batch, in place.
void reduce_fused(const World& world, const BetweenHosts& parts,
                  std::vector<std::vector<float>>& tensors) {
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
  ops.push_back(std::make_unique<HierarchicalAllreduce>(parts));
  core::Executor::Parts of_executor;
  of_executor.rank = world.rank;
  of_executor.size = world.size;
  of_executor.ops = std::make_shared<core::OpTable>(std::move(ops), "auto");
  of_executor.scratch = parts.scratch;
  core::Executor executor(std::move(of_executor));
  core::BatchWork work;
  for (std::vector<float>& tensor : tensors) {
    const auto count = static_cast<int64_t>(tensor.size());
    auto* const memory = reinterpret_cast<std::byte*>(tensor.data());
    core::EntrySpec spec;
    spec.parts = {{"tensor", {count}}};
    core::EntryWork& entry = work.entries.emplace_back();
    entry.spec = std::make_shared<const core::EntrySpec>(std::move(spec));
    entry.memory = {{memory, memory, count}};
  }
  executor.enqueue(std::move(work));
  std::vector<core::FinishedBatch> finished;
  std::vector<core::EnqueuedBatch> enqueued;
  while (finished.empty()) {
    if (executor.step(finished, enqueued) != core::Executor::Pace::Busy) std::this_thread::yield();
  }
  EXPECT_FALSE(finished.front().error);
}

// 257 has more digits than bfloat16.
TEST(NarrowWireOfFusedTensors, AShortOneIsExactBesideALongOne) {
  with_thread_hosts({0, 0, 1}, [](const World& world, BetweenHosts parts) {
    parts.wire_type = DataType::BFloat16;
    std::vector<std::vector<float>> with_short = {std::vector<float>(5000, 1), {}, {257}};
    reduce_fused(world, parts_of_second_op(parts), with_short);
    EXPECT_EQ(with_short.back().front(), 3 * 257);
    std::vector<std::vector<float>> long_ones(2, std::vector<float>(5000, 257));
    reduce_fused(world, parts, long_ones);
    EXPECT_NE(long_ones.back().front(), 3 * 257);
  });
}

class NarrowWire : public testing::TestWithParam<std::vector<int>> {};

TEST_P(NarrowWire, Allreduce) {
  for (const DataType wire_dtype : {DataType::BFloat16, DataType::Float16}) {
    with_thread_hosts(GetParam(), [&](const World& world, BetweenHosts parts) {
      parts.wire_type = wire_dtype;
      HierarchicalAllreduce op(parts);
      check_narrow_wire(world, op, CollectiveKind::Allreduce, GetParam(), wire_dtype);
      check_not_narrowed(world, op);
    });
  }
}

TEST_P(NarrowWire, AllreduceInBlocksOfInt8) {
  with_thread_hosts(GetParam(), [&](const World& world, BetweenHosts parts) {
    parts.wire_type = DataType::BFloat16;  // what the job allows for other batches
    HierarchicalAllreduce op(parts);
    check_narrow_wire(world, op, CollectiveKind::Allreduce, GetParam(), WireType::int8_blocks());
  });
}

TEST_P(NarrowWire, Reducescatter) {
  for (const DataType wire_dtype : {DataType::BFloat16, DataType::Float16}) {
    with_thread_hosts(GetParam(), [&](const World& world, BetweenHosts parts) {
      parts.wire_type = wire_dtype;
      HierarchicalExchange op(std::make_shared<HostsExchange>(parts),
                              CollectiveKind::Reducescatter);
      check_narrow_wire(world, op, CollectiveKind::Reducescatter, GetParam(), wire_dtype);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Hosts, NarrowWire,
                         testing::Values(std::vector{0, 0, 1}, std::vector{0, 1, 0, 1},
                                         std::vector{0, 0, 0, 1}, std::vector{0, 1, 2}),
                         layout_name);

// Returns what all ranks together have sent to other hosts for an allreduce of ones; in bytes.
int64_t sent_by_all(const std::vector<int>& hosts, WireType wire_type, int64_t elements) {
  std::vector<std::shared_ptr<TagCheck>> checks(hosts.size());
  const auto body = [&](const World& world, BetweenHosts parts) {
    parts.wire_type = wire_type;
    HierarchicalAllreduce op(parts);
    std::vector<float> numbers(static_cast<size_t>(elements), 1.0F);
    core::Batch batch;
    batch.count = elements;
    batch.int8_between_hosts = wire_type == WireType::int8_blocks();
    batch.output = reinterpret_cast<std::byte*>(numbers.data());
    batch.input = batch.output;
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    in_flight.push_back(op.start(std::move(batch)));
    std::mt19937_64 random(1);
    drive(world, std::move(in_flight), random);
    const auto sum = static_cast<float>(world.size);
    EXPECT_TRUE(all_are(numbers, sum));
  };
  with_thread_hosts(hosts, body, [&](MessageHub& hub, int rank) {
    const auto check = std::make_shared<TagCheck>(hub, rank);
    checks[static_cast<size_t>(rank)] = check;
    return check;
  });
  int64_t sent = 0;
  for (const auto& check : checks) sent += check->sent();
  return sent;
}

TEST(NarrowWireTraffic, IsHalfOfThatOfFloat32OrAQuarter) {
  constexpr int64_t elements = 300'000;
  const std::vector<std::vector<int>> layouts = {{0, 1}, {0, 0, 1, 1}, {0, 1, 2}};
  for (const std::vector<int>& hosts : layouts) {
    const int64_t wide = sent_by_all(hosts, DataType::Float32, elements);
    EXPECT_EQ(sent_by_all(hosts, DataType::BFloat16, elements), wide / 2);
    EXPECT_EQ(sent_by_all(hosts, DataType::Float16, elements), wide / 2);
    const auto in_blocks =
        static_cast<double>(sent_by_all(hosts, WireType::int8_blocks(), elements));
    EXPECT_NEAR(in_blocks / static_cast<double>(wide), 68.0 / 256, 0.001);
  }
}

}  // namespace
}  // namespace horon::ops
