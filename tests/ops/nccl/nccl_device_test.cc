// The contracts of the collectives on memory of a device, with the NCCL and the CUDA of the Gpu
// that this program is linked with.
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/nccl/nccl_ops.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/gpu/on_device.h"

namespace horon::ops {
namespace {

using Clock = std::chrono::steady_clock;

// What all tests use: it takes a second to make.
struct Rank {
  Rank(std::unique_ptr<test::Gpu> its_gpu, World its_world)
      : gpu(std::move(its_gpu)), world(std::move(its_world)), queue(gpu->cuda()) {
    world.queue = &queue;
    communicator = make_communicator();
    ops = make_nccl_ops(std::make_shared<NcclLine>(communicator));
    world.refuses = [this](DataType dtype, ReduceOp reduce_op) {
      core::BatchFacts facts;
      facts.device = DeviceKind::Cuda;
      facts.dtype = dtype;
      facts.reduce_op = reduce_op;
      return !ops.front()->refusal(facts).empty();
    };
  }

  std::shared_ptr<NcclCommunicator> make_communicator() const {
    const auto nccl = gpu->open_nccl();
    NcclUniqueId id = nccl->unique_id();
    MPI_Bcast(id.data(), static_cast<int>(id.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    return std::make_shared<NcclCommunicator>(nccl, gpu->cuda(), world.size, id, world.rank);
  }

  core::CollectiveOp& op(CollectiveKind kind) const {
    core::BatchFacts facts;
    facts.kind = kind;
    facts.device = DeviceKind::Cuda;
    for (const auto& op : ops) {
      if (op->refusal(facts).empty()) return *op;
    }
    throw std::runtime_error("no op");
  }

  const std::unique_ptr<test::Gpu> gpu;
  World world;
  CudaQueue queue;
  std::shared_ptr<NcclCommunicator> communicator;
  std::vector<std::unique_ptr<core::CollectiveOp>> ops;
};

class NcclOnDevice : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    World world = mpi_world();
    auto gpu = test::open_gpu(world.rank, test::Needs::CudaAndNccl, why_none);
    if (gpu != nullptr) rank = new Rank(std::move(gpu), std::move(world));
  }
  static void TearDownTestSuite() {
    delete rank;
    rank = nullptr;
  }
  void SetUp() override {
    if (rank == nullptr) GTEST_SKIP() << "no GPU: " << why_none;
  }

  static void check(CollectiveKind kind, const std::function<void(core::CollectiveOp&)>& contract) {
    test::OnDevice on_device(rank->op(kind), *rank->gpu);
    contract(on_device);
    rank->queue.record()->wait();
  }

  static inline Rank* rank = nullptr;
  static inline std::string why_none;
};

TEST_F(NcclOnDevice, Allreduce) {
  check(CollectiveKind::Allreduce, [](auto& op) { check_allreduce(rank->world, op); });
}

TEST_F(NcclOnDevice, AllRanksGetTheSameBits) {
  check(CollectiveKind::Allreduce, [](auto& op) { check_same_bits(rank->world, op); });
}

TEST_F(NcclOnDevice, ScalesAreRoundedOnce) {
  check(CollectiveKind::Allreduce, [](auto& op) { check_scales(rank->world, op); });
}

TEST_F(NcclOnDevice, ManyAndLongAndMixedAllreduces) {
  check(CollectiveKind::Allreduce, [](auto& op) {
    check_many_in_flight(rank->world, op, 3);
    check_mixed_places(rank->world, op);
    check_long_allreduce(rank->world, op, 300007);
  });
}

TEST_F(NcclOnDevice, Broadcast) {
  check(CollectiveKind::Broadcast, [](auto& op) { check_broadcast(rank->world, op); });
}

TEST_F(NcclOnDevice, Allgather) {
  check(CollectiveKind::Allgather, [](auto& op) { check_allgather(rank->world, op); });
}

TEST_F(NcclOnDevice, Reducescatter) {
  check(CollectiveKind::Reducescatter, [](auto& op) { check_reducescatter(rank->world, op); });
}

TEST_F(NcclOnDevice, AlltoallGatherScatter) {
  for (const CollectiveKind kind :
       {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    check(kind, [&](auto& op) { check_exchange(rank->world, op, kind); });
  }
}

// A rank that never comes holds the others in the stream until they abort; a new communicator
// works.
TEST_F(NcclOnDevice, AnAbortReleasesTheStream) {
  if (rank->world.size == 1) GTEST_SKIP() << "one rank waits for nobody";
  {
    const auto communicator = rank->make_communicator();
    const auto ops = make_nccl_ops(std::make_shared<NcclLine>(communicator));
    const auto memory = CudaMemory(rank->gpu->cuda()).allocate(4096);
    CudaQueue queue(rank->gpu->cuda());
    core::Batch batch;
    batch.device = DeviceKind::Cuda;
    batch.input = memory.get();
    batch.output = memory.get();
    batch.count = 1024;
    batch.queue = &queue;
    // All take part in one, so that all are connected; the last rank stays away from the second.
    const bool stays_away = rank->world.rank == rank->world.size - 1;
    std::vector<std::unique_ptr<core::InFlight>> flights;
    for (int i = 0; i < (stays_away ? 1 : 2); ++i) {
      flights.push_back(ops.front()->start(batch));
      while (flights.back()->step() != core::Progress::Done) std::this_thread::yield();
    }
    const auto event = queue.record();
    if (!stays_away) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      EXPECT_FALSE(event->happened());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    ops.front()->abort();
    event->wait();
  }
  const auto again = rank->make_communicator();
  const auto ops = make_nccl_ops(std::make_shared<NcclLine>(again));
  test::OnDevice on_device(*ops.front(), *rank->gpu);
  check_mixed_places(rank->world, on_device);
  rank->queue.record()->wait();
}

}  // namespace
}  // namespace horon::ops
