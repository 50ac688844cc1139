// The collectives in shared memory among processes, against the contract of all ops.
#include <gtest/gtest.h>

#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/host/shared_memory_exchange.h"
#include "horon/tests/ops/mpi_world.h"

namespace horon::ops {
namespace {

class SharedMemoryOps : public testing::Test {
 protected:
  void make_group(size_t area_bytes, core::LocalGroup::ProcessCopies copies =
                                         core::LocalGroup::ProcessCopies::IfAllowed) {
    group_ = mpi_local_group(area_bytes, copies);
    ASSERT_TRUE(group_->available()) << group_->unavailable_reason();
    world_.doorbell = &group_->doorbell(world_.rank);
    world_.allocate = [this](size_t bytes) { return group_->allocate(bytes); };
  }
  void SetUp() override {
    make_group(SharedMemoryAllreduce::area_bytes(world_.size));
    op_ = std::make_unique<SharedMemoryAllreduce>(*group_, group_->area());
  }
  // No rank unmaps memory that another one still uses.
  void TearDown() override { world_.gather(0); }

  World world_ = mpi_world();
  std::unique_ptr<core::LocalGroup> group_;
  std::unique_ptr<SharedMemoryAllreduce> op_;
};

TEST_F(SharedMemoryOps, Allreduce) {
  check_allreduce(world_, *op_);
  check_allreduce_refusals(*op_);
}

TEST_F(SharedMemoryOps, LongAllreduce) { check_long_allreduce(world_, *op_, 1300007); }

TEST_F(SharedMemoryOps, PiecesThatAreAskedFor) { check_pieces(world_, *op_, 1300007); }

TEST_F(SharedMemoryOps, SomeRanksInPlace) { check_mixed_places(world_, *op_); }

TEST_F(SharedMemoryOps, UnwantedOutputs) {
  check_unwanted_outputs(world_, *op_, /*writes_unwanted=*/false);
}

TEST_F(SharedMemoryOps, SameBits) { check_same_bits(world_, *op_); }

TEST_F(SharedMemoryOps, NanAndScales) {
  check_nan(world_, *op_);
  check_scales(world_, *op_);
}

TEST_F(SharedMemoryOps, ManyInFlight) { check_many_in_flight(world_, *op_, 40); }

// With copies by the kernel between private memories, where the system allows them, and without.
class SharedMemoryBlocks : public SharedMemoryOps,
                           public testing::WithParamInterface<core::LocalGroup::ProcessCopies> {
 protected:
  void SetUp() override {
    make_group(BlockExchange::area_bytes(world_.size), GetParam());
    if (GetParam() == core::LocalGroup::ProcessCopies::IfAllowed &&
        !group_->copies_between_processes()) {
      GTEST_SKIP() << group_->no_copies_reason();
    }
    exchange_ = std::make_shared<BlockExchange>(*group_, group_->area(), true);
  }

  std::shared_ptr<BlockExchange> exchange_;
};

TEST_P(SharedMemoryBlocks, Broadcast) {
  SharedMemoryExchange op(exchange_, CollectiveKind::Broadcast);
  EXPECT_EQ(op.name(), "shm_broadcast");
  EXPECT_NE(op.refusal({}), "");
  check_broadcast(world_, op);
}

TEST_P(SharedMemoryBlocks, Allgather) {
  SharedMemoryExchange op(exchange_, CollectiveKind::Allgather);
  check_allgather(world_, op);
}

TEST_P(SharedMemoryBlocks, Reducescatter) {
  SharedMemoryExchange op(exchange_, CollectiveKind::Reducescatter);
  check_reducescatter(world_, op);
}

TEST_P(SharedMemoryBlocks, AlltoallGatherScatter) {
  for (const CollectiveKind kind :
       {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    SharedMemoryExchange op(exchange_, kind);
    check_exchange(world_, op, kind);
  }
}

INSTANTIATE_TEST_SUITE_P(Copies, SharedMemoryBlocks,
                         testing::Values(core::LocalGroup::ProcessCopies::Off,
                                         core::LocalGroup::ProcessCopies::IfAllowed),
                         [](const auto& each) {
                           return each.param == core::LocalGroup::ProcessCopies::Off
                                      ? "ByRings"
                                      : "ByTheKernel";
                         });

}  // namespace
}  // namespace horon::ops
