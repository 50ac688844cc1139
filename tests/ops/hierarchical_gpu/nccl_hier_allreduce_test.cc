// Allreduce of GPUs on several hosts, with the NCCL and the CUDA of the host. The launcher says
// which ranks take each other for ranks of one host.
#include "horon/ops/hierarchical_gpu/nccl_hier_allreduce.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>

#include <gmock/gmock.h>

#include "horon/core/base/rank_names.h"
#include "horon/core/base/round_up.h"
#include "horon/ops/hierarchical_gpu/host_shards.h"
#include "horon/ops/host/host_memory.h"
#include "horon/ops/mpi/mpi_ops.h"
#include "horon/tests/ops/hierarchical/narrow_wire_contract.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::ops {
namespace {

std::string host_id() {
  const char* const id = std::getenv("HORON_HOST_ID");
  return id == nullptr ? "" : id;
}

class NcclHier : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    const core::Topology& topology = bootstrap_.topology();
    group_ = core::LocalGroup::create(bootstrap_, kOps * area_bytes() + 64);
    ASSERT_TRUE(group_->available()) << group_->unavailable_reason();
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(group_.get()));
    scratch_ = std::make_shared<core::ScratchPool>(std::move(domains));
    world_.doorbell = &group_->doorbell(topology.local_rank);
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
  size_t area_bytes() const {
    return core::whole_cache_lines(NcclHierAllreduce::area_bytes(bootstrap_.topology()));
  }
  std::unique_ptr<NcclHierAllreduce> make_op(uint32_t number, WireType wire_type = {}) {
    BetweenHosts parts;
    parts.topology = bootstrap_.topology();
    parts.messages = make_mpi_messages_beside(&communicator_);
    parts.scratch = scratch_;
    parts.group = group_.get();
    parts.area = group_->area() + number * area_bytes();
    parts.wire_type = wire_type;
    return std::make_unique<NcclHierAllreduce>(std::make_shared<JobGpu>(cuda_, nccl_), parts,
                                               number, "the ranks of this host");
  }
  // Nobody unmaps what another still uses.
  void TearDown() override {
    op_.reset();
    world_.gather(0);
    MPI_Comm_free(&communicator_);
  }

  static constexpr size_t kOps = 2;
  World world_ = mpi_world();
  core::MpiLibrary library_;
  core::MpiBootstrap bootstrap_{library_, nullptr, host_id()};
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::unique_ptr<core::LocalGroup> group_;
  std::shared_ptr<core::ScratchPool> scratch_;
  std::shared_ptr<test::HostCuda> cuda_;
  std::shared_ptr<test::HostNccl> nccl_;
  std::unique_ptr<NcclHierAllreduce> op_;
};

TEST_F(NcclHier, Allreduce) { check_allreduce(world_, *op_); }

TEST_F(NcclHier, LongAllreduce) {
  check_long_allreduce(world_, *op_, 300007);
  check_mixed_places(world_, *op_);
}

TEST_F(NcclHier, SameBitsAndScales) {
  check_same_bits(world_, *op_);
  check_scales(world_, *op_);
}

TEST_F(NcclHier, ManyInFlight) { check_many_in_flight(world_, *op_, 4); }

// What NCCL alone can't: sums travel in fewer bytes.
TEST_F(NcclHier, SumsTravelIn16BitsOrBlocksOfInt8) {
  const std::vector<int>& hosts = bootstrap_.topology().host_of;
  if (bootstrap_.topology().one_host()) GTEST_SKIP() << "nothing travels";
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
        const HostShards::Stretch last = HostShards(longest, dtype, lanes).of(lanes - 1);
        EXPECT_LE(last.count * static_cast<int64_t>(size_of(dtype)), HostShards::bytes_max(lanes));
        EXPECT_TRUE(shards.each() == 0 || shards.rest() < HostShards::kAlignment * lanes);
      }
    }
  }
}

}  // namespace
}  // namespace horon::ops
