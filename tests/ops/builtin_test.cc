// Which collective this build takes for what, on one host and on several.
#include "horon/ops/builtin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/execution/op_table.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {
namespace {

class Builtin : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    group_ = mpi_local_group(builtin_area_bytes(world_.size));
    ASSERT_TRUE(group_->available());
    world_.doorbell = &group_->doorbell(world_.rank);
    parts_.topology = &topology_;
    parts_.config = &config_;
    parts_.local_group = group_.get();
    parts_.area = group_->area();
    parts_.mpi_communicator = &communicator_;
  }
  void TearDown() override {
    world_.gather(0);
    MPI_Comm_free(&communicator_);
  }

  std::string chosen(CollectiveKind kind, const std::string& knob) const {
    const core::OpTable table(make_builtin_ops(parts_), knob);
    core::BatchFacts facts;
    facts.kind = kind;
    facts.count = 5;
    return std::string(table.select(facts).name());
  }

  World world_ = mpi_world();
  core::Topology topology_ = core::one_host_topology(world_.rank, world_.size);
  core::Config config_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::unique_ptr<core::LocalGroup> group_;
  BuiltinParts parts_;
};

TEST_F(Builtin, SharedMemoryComesFirstOnOneHost) {
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "shm_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "mpi"), "mpi_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Broadcast, "shm"), "mpi_broadcast");
  EXPECT_EQ(chosen(CollectiveKind::Allgather, "auto"), "mpi_allgather");
  EXPECT_EQ(chosen(CollectiveKind::Barrier, "auto"), "mpi_barrier");
}

TEST_F(Builtin, SeveralHostsUseMpi) {
  topology_.local_size = world_.size + 1;  // as seen from a larger job; one_host() is false
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "mpi_allreduce");
  EXPECT_THROW(chosen(CollectiveKind::Allreduce, "shm"), Error);
}

TEST_F(Builtin, SharedMemoryCanBeSwitchedOff) {
  config_.shared_memory = false;
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "mpi_allreduce");
  config_.shared_memory = true;
  const auto none = core::LocalGroup::create_unavailable(world_.rank, world_.size, "a test");
  parts_.local_group = none.get();
  parts_.area = none->area();
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "mpi_allreduce");
}

TEST_F(Builtin, WithoutMpiOnlyAllreduceIsLeft) {
  parts_.mpi_communicator = nullptr;
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "shm_allreduce");
  EXPECT_THROW(chosen(CollectiveKind::Barrier, "auto"), Error);
}

// Two ops of one list in flight together, each on its own kind of channel.
TEST_F(Builtin, TheOpsWorkSideBySide) {
  std::mt19937_64 random(static_cast<uint64_t>(world_.rank));
  const auto ops = make_builtin_ops(parts_);
  std::vector<std::unique_ptr<AllreduceRun>> runs;
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  for (uint64_t i = 0; i < 20; ++i) {
    const AllreduceCase tested = {.count = static_cast<int64_t>(1 + 1000 * i)};
    runs.push_back(std::make_unique<AllreduceRun>(world_, tested, i));
    in_flight.push_back(ops[i % 2]->start(runs.back()->batch()));
  }
  drive(world_, std::move(in_flight), random);
  for (const auto& run : runs) run->check();
}

TEST_F(Builtin, HostMemoryIsTheDomain) {
  const auto domains = make_builtin_domains(group_.get());
  ASSERT_EQ(domains.size(), 1u);
  EXPECT_EQ(domains[0]->device(), DeviceKind::Host);
}

}  // namespace
}  // namespace horon::ops
