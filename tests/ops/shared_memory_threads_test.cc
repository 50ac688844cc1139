// Allreduce in shared memory among threads of one process: the same code under ThreadSanitizer.
#include <gtest/gtest.h>

#include "horon/ops/host/piece_allreduce.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/tests/ops/op_contract.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

using Body = std::function<void(const World& world, SharedMemoryAllreduce& op)>;

void with_threads(int size, const Body& body) {
  core::InProcessJob job(size);
  core::run_ranks(size, [&](int rank) {
    const auto group =
        core::LocalGroup::create(job.of(rank), SharedMemoryAllreduce::area_bytes(size));
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    World world;
    world.rank = rank;
    world.size = size;
    world.doorbell = &group->doorbell(rank);
    world.allocate = [&](size_t bytes) { return group->allocate(bytes); };
    world.gather = [&](uint64_t mine) {
      return core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, mine);
    };
    SharedMemoryAllreduce op(*group, group->area());
    body(world, op);
    world.gather(0);
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

TEST_P(Threads, ManyInFlight) {
  with_threads(GetParam(), [](const World& world, SharedMemoryAllreduce& op) {
    check_many_in_flight(world, op, 16);
  });
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, Threads, testing::Values(1, 2, 3, 4, 7));

// The ranks' bit masks have more than one word.
TEST(SharedMemory, SeventyRanks) {
  with_threads(70, [](const World& world, SharedMemoryAllreduce& op) {
    check_long_allreduce(world, op, 50);
    check_long_allreduce(world, op, 1000);
  });
}

TEST(SharedMemory, PiecesAreAlignedAndBounded) {
  for (const int ranks : {1, 2, 3, 8, 64, 1000}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{8193}, int64_t{1} << 20, int64_t{1} << 40}) {
      const int64_t piece = PieceAllreduce::piece_bytes(bytes, ranks);
      EXPECT_EQ(piece % 64, 0);
      EXPECT_GE(piece, 32 << 10);
      EXPECT_LE(piece, 256 << 10);
    }
  }
}

}  // namespace
}  // namespace horon::ops
