// The collectives on NCCL among processes, with the NCCL and the CUDA of the host.
#include "horon/ops/nccl/nccl_ops.h"

#include <gmock/gmock.h>

#include "horon/ops/cuda/cuda_memory.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/host_gpu/host_nccl.h"

namespace horon::ops {
namespace {

class NcclOps : public testing::Test {
 protected:
  void SetUp() override {
    test::HostCuda::Options late;
    late.delay_us_max = 30;
    late.seed = static_cast<uint32_t>(world_.rank) + 1;
    const auto cuda = std::make_shared<test::HostCuda>(0, late);
    test::HostNccl::Options busy;
    busy.busy_polls = 2;
    const auto nccl = std::make_shared<test::HostNccl>(cuda, busy);
    NcclUniqueId id = nccl->unique_id();
    MPI_Bcast(id.data(), static_cast<int>(id.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    queue_ = std::make_unique<CudaQueue>(cuda);
    world_.queue = queue_.get();
    world_.refuses = [this](DataType dtype, ReduceOp reduce_op) {
      core::BatchFacts facts;
      facts.device = DeviceKind::Cuda;
      facts.dtype = dtype;
      facts.reduce_op = reduce_op;
      return !ops_.front()->refusal(facts).empty();
    };
    communicator_ = std::make_shared<NcclCommunicator>(nccl, cuda, world_.size, id, world_.rank);
    ops_ = make_nccl_ops(std::make_shared<NcclLine>(communicator_));
  }

  core::CollectiveOp& op(CollectiveKind kind) {
    core::BatchFacts facts;
    facts.kind = kind;
    facts.device = DeviceKind::Cuda;
    for (const auto& op : ops_) {
      if (op->refusal(facts).empty()) return *op;
    }
    throw std::runtime_error("no op");
  }

  World world_ = mpi_world();
  std::unique_ptr<CudaQueue> queue_;
  std::shared_ptr<NcclCommunicator> communicator_;
  std::vector<std::unique_ptr<core::CollectiveOp>> ops_;
};

TEST_F(NcclOps, Allreduce) {
  core::CollectiveOp& allreduce = op(CollectiveKind::Allreduce);
  check_allreduce(world_, allreduce);
  check_same_bits(world_, allreduce);
  check_scales(world_, allreduce);
  check_many_in_flight(world_, allreduce, 4);
  check_mixed_places(world_, allreduce);
}

TEST_F(NcclOps, LongAllreduce) {
  check_long_allreduce(world_, op(CollectiveKind::Allreduce), 300007);
}

TEST_F(NcclOps, OtherKinds) {
  check_broadcast(world_, op(CollectiveKind::Broadcast));
  check_allgather(world_, op(CollectiveKind::Allgather));
  check_reducescatter(world_, op(CollectiveKind::Reducescatter));
  for (const CollectiveKind kind :
       {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    check_exchange(world_, op(kind), kind);
  }
}

TEST_F(NcclOps, RefusesWhatNcclCannotDo) {
  core::BatchFacts facts;
  facts.device = DeviceKind::Cuda;
  facts.dtype = DataType::Int16;
  core::CollectiveOp& allreduce = op(CollectiveKind::Allreduce);
  EXPECT_EQ(allreduce.refusal(facts), "NCCL has no int16");
  facts.dtype = DataType::Bool;
  EXPECT_EQ(allreduce.refusal(facts), "");
  facts.reduce_op = ReduceOp::Average;
  EXPECT_THAT(allreduce.refusal(facts), testing::HasSubstr("average of bool is not defined"));
  facts.reduce_op = ReduceOp::BitOr;
  EXPECT_EQ(allreduce.refusal(facts), "NCCL has no BitOr");
  facts.reduce_op = ReduceOp::Average;
  for (const DataType dtype : {DataType::Int8, DataType::UInt8, DataType::Int32}) {
    facts.dtype = dtype;
    EXPECT_NE(allreduce.refusal(facts), "") << to_string(dtype);
  }
  facts.dtype = DataType::Int64;
  EXPECT_EQ(allreduce.refusal(facts), "");
  facts = {};
  EXPECT_EQ(allreduce.refusal(facts), "it can't reach host memory");
  facts.device = DeviceKind::Cuda;
  facts.kind = CollectiveKind::Broadcast;
  facts.dtype = DataType::Int16;
  EXPECT_EQ(op(CollectiveKind::Broadcast).refusal(facts), "");
}

}  // namespace
}  // namespace horon::ops
