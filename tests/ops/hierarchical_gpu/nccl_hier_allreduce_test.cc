// Allreduce of GPUs on several hosts, with the NCCL and the CUDA of the host.
#include "horon/ops/hierarchical_gpu/nccl_hier_allreduce.h"

#include <algorithm>
#include <string>

#include <gmock/gmock.h>

#include "horon/core/base/rank_names.h"
#include "horon/ops/hierarchical_gpu/host_shards.h"
#include "horon/ops/mpi/mpi_ops.h"
#include "horon/tests/ops/hierarchical/hosts_fixture.h"
#include "horon/tests/ops/hierarchical/narrow_wire_contract.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::ops {
namespace {

class NcclHier : public HostsFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(share_memory(2, NcclHierAllreduce::area_bytes(topology())));
    world_.refuses = [this](DataType dtype, ReduceOp reduce_op) {
      core::BatchFacts facts;
      facts.device = DeviceKind::Cuda;
      facts.dtype = dtype;
      facts.reduce_op = reduce_op;
      return !op_->refusal(facts).empty();
    };
    test::HostCuda::Options late;
    late.delay_us_max = 30;
    late.seed = static_cast<uint32_t>(world_.rank) + 1;
    cuda_ = std::make_shared<test::HostCuda>(0, late);
    test::HostNccl::Options busy;
    busy.busy_polls = 2;
    nccl_ = std::make_shared<test::HostNccl>(cuda_, busy);
    op_ = make_op(0);
  }
  std::unique_ptr<NcclHierAllreduce> make_op(uint32_t number, WireType wire_type = {}) {
    return std::make_unique<NcclHierAllreduce>(
        std::make_shared<JobGpu>(cuda_, nccl_),
        between_hosts(number, make_mpi_messages_beside(&communicator_), wire_type), number,
        "the ranks of this host");
  }
  void TearDown() override {
    op_.reset();
    HostsFixture::TearDown();
  }

  std::shared_ptr<test::HostCuda> cuda_;
  std::shared_ptr<test::HostNccl> nccl_;
  std::unique_ptr<NcclHierAllreduce> op_;
};

TEST_F(NcclHier, Allreduce) { check_allreduce(world_, *op_); }

TEST_F(NcclHier, LongAllreduce) {
  check_long_allreduce(world_, *op_, 300007);
  check_mixed_places(world_, *op_);
}

TEST_F(NcclHier, PiecesThatAreAskedFor) {
  check_pieces(world_, *op_, 300'007);
  core::Batch batch;
  batch.count = 1 << 20;
  const HostsLayout layout = make_hosts_layout(topology());
  const int64_t most = layout.lanes * int64_t{4 << 20};
  // With more than two inputs of a host, NCCL may add in an order that depends on the length.
  const int64_t least = layout.most_ranks > 2 ? most : layout.lanes * int64_t{64 << 10};
  EXPECT_EQ(op_->piece_sizes(batch), (core::PieceSizes{least, most, most}));
  batch.int8_between_hosts = true;  // one length only, so that it is always rounded alike
  const core::PieceSizes rounded = op_->piece_sizes(batch);
  EXPECT_EQ(rounded, (core::PieceSizes{rounded.usual, rounded.usual, rounded.usual}));
}

TEST_F(NcclHier, SameBitsAndScales) {
  check_same_bits(world_, *op_);
  check_scales(world_, *op_);
}

TEST_F(NcclHier, ManyInFlight) { check_many_in_flight(world_, *op_, 4); }

// What NCCL alone can't do: sums travel in fewer bytes.
TEST_F(NcclHier, SumsTravelIn16BitsOrBlocksOfInt8) {
  const std::vector<int>& hosts = topology().host_of;
  if (topology().one_host()) GTEST_SKIP() << "nothing travels";
  const auto allreduce = make_op(1, DataType::BFloat16);
  check_narrow_wire(world_, *allreduce, CollectiveKind::Allreduce, hosts, DataType::BFloat16);
  check_narrow_wire(world_, *allreduce, CollectiveKind::Allreduce, hosts, WireType::int8_blocks());
  check_not_narrowed(world_, *allreduce);
}

TEST_F(NcclHier, RefusesWhatNcclCannotDo) {
  core::BatchFacts facts;
  EXPECT_EQ(op_->refusal(facts), "it can't reach host memory");
  facts.device = DeviceKind::Cuda;
  EXPECT_EQ(op_->refusal(facts), "");
  facts.dtype = DataType::Int16;
  EXPECT_EQ(op_->refusal(facts), "NCCL has no int16");
  facts.kind = CollectiveKind::Broadcast;
  EXPECT_EQ(op_->refusal(facts), "it does allreduce only");
}

TEST(HostShards, CoverTheBatch) {
  for (const DataType dtype : {DataType::UInt8, DataType::Float32, DataType::Float64}) {
    for (const int lanes : {1, 2, 3, 8}) {
      for (const int64_t count : {1LL, 63LL, 64LL, 4096LL, 100'001LL, 3'000'000'007LL}) {
        const HostShards shards(count, dtype, lanes);
        int64_t end = 0;
        for (int lane = 0; lane < lanes; ++lane) {
          const HostShards::Stretch shard = shards.of(lane);
          EXPECT_EQ(shard.begin, end);
          EXPECT_EQ(shard.begin % HostShards::kAlignment, 0);
          end += shard.count;
          // A short batch is one lane's.
          const int64_t bytes = shard.count * static_cast<int64_t>(size_of(dtype));
          EXPECT_TRUE(shard.count == 0 || shard.count == count || bytes >= 16 << 10);
        }
        EXPECT_EQ(end, count);
        EXPECT_EQ(shards.of(lanes).count, 0);
        const int64_t longest = std::min(count, HostShards::batch_elements(dtype, lanes));
        for (const int64_t piece : {longest, longest - 1}) {  // the last lane has what is left over
          const HostShards::Stretch last = HostShards(piece, dtype, lanes).of(lanes - 1);
          EXPECT_LE(last.count * static_cast<int64_t>(size_of(dtype)),
                    HostShards::bytes_max(lanes));
        }
        EXPECT_TRUE(shards.each() == 0 || shards.rest() < HostShards::kAlignment * lanes);
      }
    }
  }
}

}  // namespace
}  // namespace horon::ops
