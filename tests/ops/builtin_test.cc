// Which op this build chooses for which batch, on one host and on several.
#include "horon/ops/builtin.h"

#include <deque>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/negotiation/ring_gate.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/host/block_exchange.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/mpi/mpi_communicator.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/mpi_world.h"

namespace horon::ops {
namespace {

class Builtin : public testing::Test {
 protected:
  void SetUp() override {
    parts_.topology = bootstrap_.topology();
    for (int rank = 0; rank < world_.size; ++rank) parts_.members.push_back(rank);
    parts_.local_group =
        core::LocalGroup::create(bootstrap_, builtin_area_bytes(parts_.topology, config_));
    ASSERT_TRUE(parts_.local_group->available());
    world_.doorbell = &parts_.local_group->doorbell(world_.rank);
    parts_.area = parts_.local_group->area();
    parts_.all_share_memory = parts_.all_reach_their_hosts = true;
    parts_.mpi = std::make_unique<MpiCommunicator>(bootstrap_);
  }
  // No rank unmaps memory that another one still uses.
  void TearDown() override { world_.gather(0); }

  // Made of the parts, which a test may change before the first call.
  Communicator& communicator() {
    if (communicator_ == nullptr) communicator_ = std::make_unique<Communicator>(std::move(parts_));
    return *communicator_;
  }

  std::string chosen(CollectiveKind kind, const std::string& knob) {
    config_.allreduce = knob;
    const core::Executor::Parts execution = make_execution(communicator(), config_, nullptr);
    core::BatchFacts facts;
    facts.kind = kind;
    facts.count = 5;
    return std::string(execution.ops->select(facts).name());
  }

  bool same_in_parts(const core::Batch& like) {
    const core::Executor::Parts execution = make_execution(communicator(), config_, nullptr);
    core::BatchFacts facts;
    facts.kind = like.kind;
    facts.dtype = like.dtype;
    facts.reduce_op = like.reduce_op;
    facts.count = like.count;
    return execution.ops->select(facts).same_in_parts(like);
  }

  World world_ = mpi_world();
  core::MpiLibrary library_;
  core::MpiBootstrap bootstrap_{library_};
  core::Config config_;
  Communicator::Parts parts_;
  std::unique_ptr<Communicator> communicator_;
};

TEST_F(Builtin, SharedMemoryComesFirstOnOneHost) {
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "shm_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "mpi"), "mpi_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Broadcast, "shm"), "shm_broadcast");
  EXPECT_EQ(chosen(CollectiveKind::Broadcast, "mpi"), "shm_broadcast");
  EXPECT_EQ(chosen(CollectiveKind::Allgather, "auto"), "shm_allgather");
  EXPECT_EQ(chosen(CollectiveKind::Reducescatter, "auto"), "shm_reducescatter");
  EXPECT_EQ(chosen(CollectiveKind::Alltoall, "auto"), "shm_alltoall");
  EXPECT_EQ(chosen(CollectiveKind::Gather, "auto"), "shm_gather");
  EXPECT_EQ(chosen(CollectiveKind::Scatter, "auto"), "shm_scatter");
  EXPECT_EQ(chosen(CollectiveKind::Barrier, "auto"), "plan_barrier");
}

core::Batch batch_of(CollectiveKind kind, ReduceOp op, DataType dtype = DataType::Float32) {
  core::Batch batch;
  batch.kind = kind;
  batch.reduce_op = op;
  batch.dtype = dtype;
  batch.count = 1 << 20;
  return batch;
}

// A batch that is copied to the host is cut only if that changes no bits.
TEST_F(Builtin, WhatMayBeCutInParts) {
  const core::Batch sum = batch_of(CollectiveKind::Allreduce, ReduceOp::Sum);
  EXPECT_TRUE(same_in_parts(sum));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Broadcast, ReduceOp::Sum)));
  const core::Batch blocks = batch_of(CollectiveKind::Reducescatter, ReduceOp::Sum);
  EXPECT_TRUE(same_in_parts(blocks));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allgather, ReduceOp::Sum)));
  for (const CollectiveKind kind : {CollectiveKind::Alltoall, CollectiveKind::Gather,
                                    CollectiveKind::Scatter, CollectiveKind::Barrier}) {
    EXPECT_FALSE(same_in_parts(batch_of(kind, ReduceOp::Sum))) << to_string(kind);
  }
  EXPECT_FALSE(same_in_parts(batch_of(CollectiveKind::Allreduce, ReduceOp::Adasum)));
  config_.shared_memory = false;  // by MPI, which adds in an order that depends on the length
  EXPECT_EQ(same_in_parts(sum), world_.size == 2);
  EXPECT_EQ(same_in_parts(blocks), world_.size == 2);
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Reducescatter, ReduceOp::Min)));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allgather, ReduceOp::Sum)));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allreduce, ReduceOp::Max)));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allreduce, ReduceOp::Sum, DataType::Int32)));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Broadcast, ReduceOp::Sum)));
}

// This job as seen from a larger one, with one rank more on another host.
core::Topology with_another_host(const core::Topology& one_host) {
  std::vector<int> host_of = one_host.host_of;
  host_of.push_back(1);
  return core::make_topology(one_host.rank, host_of);
}

TEST_F(Builtin, SeveralHostsHaveAnAllreduceOfTheirOwn) {
  parts_.topology = with_another_host(parts_.topology);
  parts_.members.push_back(world_.size);
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "hier_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "mpi"), "mpi_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Broadcast, "auto"), "hier_broadcast");
  EXPECT_EQ(chosen(CollectiveKind::Allgather, "auto"), "hier_allgather");
  EXPECT_EQ(chosen(CollectiveKind::Reducescatter, "auto"), "hier_reducescatter");
  EXPECT_EQ(chosen(CollectiveKind::Alltoall, "auto"), "hier_alltoall");
  EXPECT_THROW(chosen(CollectiveKind::Allreduce, "shm"), Error);
}

TEST_F(Builtin, WhatIsRoundedBetweenHostsIsNotCut) {
  parts_.topology = with_another_host(parts_.topology);
  parts_.members.push_back(world_.size);
  core::Batch sum = batch_of(CollectiveKind::Allreduce, ReduceOp::Sum);
  EXPECT_TRUE(same_in_parts(sum));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Broadcast, ReduceOp::Sum)));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allgather, ReduceOp::Sum)));
  core::Batch blocks = batch_of(CollectiveKind::Reducescatter, ReduceOp::Sum);
  blocks.send_counts = std::vector<int64_t>(static_cast<size_t>(world_.size) + 1, 1 << 20);
  EXPECT_TRUE(same_in_parts(blocks));
  sum.int8_between_hosts = true;
  EXPECT_FALSE(same_in_parts(sum));
  sum.int8_between_hosts = false;
  config_.wire_dtype = "bfloat16";
  EXPECT_FALSE(same_in_parts(sum));
  EXPECT_FALSE(same_in_parts(blocks));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allreduce, ReduceOp::Max)));
  EXPECT_TRUE(same_in_parts(batch_of(CollectiveKind::Allreduce, ReduceOp::Sum, DataType::Float64)));
}

TEST_F(Builtin, SeveralHostsUseMpiIfOneOfThemHasNoSharedMemory) {
  parts_.topology = with_another_host(parts_.topology);
  parts_.members.push_back(world_.size);
  parts_.all_share_memory = parts_.all_reach_their_hosts = false;
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "mpi_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Broadcast, "auto"), "mpi_broadcast");
  EXPECT_EQ(chosen(CollectiveKind::Allgather, "auto"), "mpi_allgather");
  EXPECT_EQ(chosen(CollectiveKind::Reducescatter, "auto"), "mpi_reducescatter");
  EXPECT_EQ(chosen(CollectiveKind::Alltoall, "auto"), "hier_alltoall");
  EXPECT_THROW(chosen(CollectiveKind::Allreduce, "hier"), Error);
}

// The gate takes more than a hundred KiB, and a job may have many sets.
TEST_F(Builtin, OnlyASetWithAGateHasMemoryForOne) {
  const auto room = [&](const core::Topology& topology) {
    return builtin_area_bytes(topology, config_) -
           SharedMemoryAllreduce::area_bytes(topology.local_size) -
           BlockExchange::area_bytes(topology.local_size);
  };
  constexpr size_t kPadding = 128;
  const core::Topology one_host = parts_.topology;
  const core::Topology two_hosts = with_another_host(one_host);
  EXPECT_GE(room(one_host), core::RingGate::bytes(one_host.local_size));
  // Collectives that go in chunks have cells there.
  EXPECT_LT(builtin_area_bytes(two_hosts, config_),
            core::RingGate::bytes(two_hosts.local_size) +
                2 * HierarchicalAllreduce::area_bytes(two_hosts) + kPadding);
  EXPECT_LT(room(core::Topology()), kPadding);
  EXPECT_NE(make_gate(communicator(), config_), nullptr);
  config_.freeze = false;
  EXPECT_LT(room(one_host), kPadding);
  EXPECT_EQ(make_gate(communicator(), config_), nullptr);
}

TEST_F(Builtin, NoHostHasAGateIfOneHasNoSharedMemory) {
  parts_.all_share_memory = false;
  EXPECT_EQ(make_gate(communicator(), config_), nullptr);
}

TEST_F(Builtin, SharedMemoryCanBeSwitchedOff) {
  config_.shared_memory = false;
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "mpi_allreduce");
}

TEST_F(Builtin, SharedMemoryMayNotBeThere) {
  parts_.local_group = core::LocalGroup::create_unavailable(world_.rank, world_.size, "a test");
  parts_.area = nullptr;
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "mpi_allreduce");
}

TEST_F(Builtin, WithoutMpiWhatUsesSharedMemoryIsLeft) {
  parts_.mpi = nullptr;
  EXPECT_EQ(chosen(CollectiveKind::Allreduce, "auto"), "shm_allreduce");
  EXPECT_EQ(chosen(CollectiveKind::Broadcast, "auto"), "shm_broadcast");
  EXPECT_EQ(chosen(CollectiveKind::Barrier, "auto"), "plan_barrier");
}

// The ops of one list in flight together, each on its own kind of channel.
TEST_F(Builtin, TheOpsWorkSideBySide) {
  std::mt19937_64 random(static_cast<uint64_t>(world_.rank));
  const auto scratch =
      std::make_shared<core::ScratchPool>(make_builtin_domains(&communicator().local_group()));
  const auto ops = make_builtin_ops(communicator(), config_, scratch);
  std::vector<core::CollectiveOp*> allreduces;
  core::CollectiveOp* adasum = nullptr;
  core::CollectiveOp* allgather = nullptr;
  for (const auto& op : ops) {
    if (op->name() == "shm_allgather") allgather = op.get();
    if (op->name() == "adasum_allreduce") {
      adasum = op.get();
    } else if (op->name().ends_with("allreduce")) {
      allreduces.push_back(op.get());
    }
  }
  ASSERT_EQ(allreduces.size(), 2u);
  ASSERT_NE(adasum, nullptr);
  ASSERT_NE(allgather, nullptr);
  std::vector<std::unique_ptr<AllreduceRun>> runs;
  std::deque<std::vector<float>> equal;
  std::deque<std::vector<float>> gathered;
  std::vector<std::unique_ptr<core::InFlight>> in_flight;
  for (uint64_t i = 0; i < 20; ++i) {
    const AllreduceCase tested = {.count = static_cast<int64_t>(1 + 1000 * i)};
    runs.push_back(std::make_unique<AllreduceRun>(world_, tested, i));
    in_flight.push_back(allreduces[i % 2]->start(runs.back()->batch()));
    core::Batch batch;  // of equal vectors, whose Adasum is what each is
    batch.sequence = 20 + i;
    batch.reduce_op = ReduceOp::Adasum;
    batch.count = tested.count;
    batch.tensor_counts = core::BlockCounts({tested.count});
    batch.input = batch.output = reinterpret_cast<std::byte*>(
        equal.emplace_back(static_cast<size_t>(tested.count), 3.0F).data());
    in_flight.push_back(adasum->start(batch));
    core::Batch rows;
    rows.kind = CollectiveKind::Allgather;
    rows.count = tested.count;
    rows.receive_counts = std::vector<int64_t>(static_cast<size_t>(world_.size), tested.count);
    std::vector<float>& all = gathered.emplace_back(static_cast<size_t>(tested.count * world_.size),
                                                    static_cast<float>(world_.rank));
    rows.output = reinterpret_cast<std::byte*>(all.data());
    rows.input = rows.output + tested.count * world_.rank * static_cast<int64_t>(sizeof(float));
    in_flight.push_back(allgather->start(rows));
  }
  drive(world_, std::move(in_flight), random);
  for (const auto& run : runs) run->check();
  for (const std::vector<float>& numbers : equal) EXPECT_THAT(numbers, testing::Each(3.0F));
  for (const std::vector<float>& all : gathered) {
    const size_t count = all.size() / static_cast<size_t>(world_.size);
    for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<float>(i / count));
  }
}

TEST_F(Builtin, HostMemoryIsTheDomain) {
  const auto domains = make_builtin_domains(parts_.local_group.get());
  ASSERT_EQ(domains.size(), 1u);
  EXPECT_EQ(domains[0]->device(), DeviceKind::Host);
}

}  // namespace
}  // namespace horon::ops
