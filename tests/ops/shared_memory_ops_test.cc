// Allreduce in shared memory among processes, against the contract of all ops.
#include <gtest/gtest.h>

#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/tests/ops/mpi_world.h"

namespace horon::ops {
namespace {

class SharedMemoryOps : public testing::Test {
 protected:
  void SetUp() override {
    group_ = mpi_local_group(SharedMemoryAllreduce::area_bytes(world_.size));
    ASSERT_TRUE(group_->available()) << group_->unavailable_reason();
    world_.doorbell = &group_->doorbell(world_.rank);
    world_.allocate = [this](size_t bytes) { return group_->allocate(bytes); };
    op_ = std::make_unique<SharedMemoryAllreduce>(*group_, group_->area());
  }
  // Nobody unmaps what another still uses.
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

TEST_F(SharedMemoryOps, SomeRanksInPlace) { check_mixed_places(world_, *op_); }

TEST_F(SharedMemoryOps, SameBits) { check_same_bits(world_, *op_); }

TEST_F(SharedMemoryOps, NanAndScales) {
  check_nan(world_, *op_);
  check_scales(world_, *op_);
}

TEST_F(SharedMemoryOps, ManyInFlight) { check_many_in_flight(world_, *op_, 40); }

}  // namespace
}  // namespace horon::ops
