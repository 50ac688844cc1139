// The allreduce over several hosts on MPI. The launcher says which ranks take each other for ranks
// of one host.
#include <cstdlib>

#include <gtest/gtest.h>

#include "horon/core/base/round_up.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hosts_exchange.h"
#include "horon/ops/hierarchical/message_exchange.h"
#include "horon/ops/host/host_memory.h"
#include "horon/ops/mpi/mpi_ops.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/hierarchical/narrow_wire_contract.h"
#include "horon/tests/ops/mpi_world.h"

namespace horon::ops {
namespace {

std::string host_id() {
  const char* const id = std::getenv("HORON_HOST_ID");
  return id == nullptr ? "" : id;
}

class HierarchicalOps : public testing::Test {
 protected:
  void SetUp() override {
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    const core::Topology& topology = bootstrap_.topology();
    const size_t each = core::whole_cache_lines(ChunkedRun::area_bytes(topology));
    group_ = core::LocalGroup::create(bootstrap_, kAreas * each + 64);
    ASSERT_TRUE(group_->available()) << group_->unavailable_reason();
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(group_.get()));
    scratch_ = std::make_shared<core::ScratchPool>(std::move(domains));
    world_.doorbell = &group_->doorbell(topology.local_rank);
    world_.allocate = [this](size_t bytes) { return group_->allocate(bytes); };
    op_ = std::make_unique<HierarchicalAllreduce>(parts(0));
    exchange_ = std::make_shared<HostsExchange>(parts(1));
  }
  // For the op that has this part of the shared memory.
  BetweenHosts parts(size_t area, WireType wire_type = DataType::Float32) {
    const core::Topology& topology = bootstrap_.topology();
    BetweenHosts parts;
    parts.topology = topology;
    parts.messages = make_mpi_messages(&communicator_);
    parts.scratch = scratch_;
    parts.group = group_.get();
    parts.area = group_->area() + area * core::whole_cache_lines(ChunkedRun::area_bytes(topology));
    parts.wire_type = wire_type;
    return parts;
  }
  // Nobody unmaps what another still uses.
  void TearDown() override {
    world_.gather(0);
    MPI_Comm_free(&communicator_);
  }

  static constexpr size_t kAreas = 4;
  World world_ = mpi_world();
  core::MpiLibrary library_;
  core::MpiBootstrap bootstrap_{library_, nullptr, host_id()};
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::unique_ptr<core::LocalGroup> group_;
  std::shared_ptr<core::ScratchPool> scratch_;
  std::unique_ptr<HierarchicalAllreduce> op_;
  std::shared_ptr<HostsExchange> exchange_;
};

TEST_F(HierarchicalOps, Allreduce) { check_allreduce(world_, *op_); }

TEST_F(HierarchicalOps, LongAllreduce) {
  check_long_allreduce(world_, *op_, 1300007);
  check_mixed_places(world_, *op_);
}

TEST_F(HierarchicalOps, SameBitsNanAndScales) {
  check_same_bits(world_, *op_);
  check_nan(world_, *op_);
  check_scales(world_, *op_);
}

TEST_F(HierarchicalOps, ManyInFlight) { check_many_in_flight(world_, *op_, 20); }

TEST_F(HierarchicalOps, BlocksByMessages) {
  const auto messages = std::make_shared<MessageExchange>(make_mpi_messages(&communicator_),
                                                          world_.rank, world_.size);
  for (const CollectiveKind kind :
       {CollectiveKind::Alltoall, CollectiveKind::Gather, CollectiveKind::Scatter}) {
    HierarchicalExchange op(messages, kind);
    check_exchange(world_, op, kind);
  }
}

TEST_F(HierarchicalOps, BlocksInChunks) {
  HierarchicalExchange broadcast(exchange_, CollectiveKind::Broadcast);
  check_broadcast(world_, broadcast);
  HierarchicalExchange allgather(exchange_, CollectiveKind::Allgather);
  check_allgather(world_, allgather);
  HierarchicalExchange reducescatter(exchange_, CollectiveKind::Reducescatter);
  check_reducescatter(world_, reducescatter);
}

TEST_F(HierarchicalOps, SumsTravelIn16BitsOrBlocksOfInt8) {
  const std::vector<int>& hosts = bootstrap_.topology().host_of;
  if (bootstrap_.topology().one_host()) GTEST_SKIP() << "nothing travels";
  HierarchicalAllreduce allreduce(parts(2, DataType::BFloat16));
  check_narrow_wire(world_, allreduce, CollectiveKind::Allreduce, hosts, DataType::BFloat16);
  check_narrow_wire(world_, allreduce, CollectiveKind::Allreduce, hosts, WireType::int8_blocks());
  check_not_narrowed(world_, allreduce);
  HierarchicalExchange reducescatter(std::make_shared<HostsExchange>(parts(3, DataType::Float16)),
                                     CollectiveKind::Reducescatter);
  check_narrow_wire(world_, reducescatter, CollectiveKind::Reducescatter, hosts, DataType::Float16);
}

// MPI's own messages on the same communicator have other tags.
TEST_F(HierarchicalOps, BesideTheOpsOnMpi) {
  const auto ops = make_mpi_ops(&communicator_, scratch_);
  std::mt19937_64 random(static_cast<uint64_t>(world_.rank));
  for (int round = 0; round < 10; ++round) {
    const auto members = static_cast<size_t>(world_.size);
    std::vector<int32_t> given(members, world_.rank);
    std::vector<int32_t> got(members, -1);
    core::Batch swap;
    swap.kind = CollectiveKind::Alltoall;
    swap.dtype = DataType::Int32;
    swap.sequence = static_cast<uint64_t>(round);
    swap.input = reinterpret_cast<const std::byte*>(given.data());
    swap.output = reinterpret_cast<std::byte*>(got.data());
    swap.count = world_.size;
    swap.send_counts = swap.receive_counts = std::vector<int64_t>(members, 1);
    AllreduceRun sum(world_, {.count = 1000 + 5000 * round}, static_cast<uint64_t>(round));
    std::vector<std::unique_ptr<core::InFlight>> in_flight;
    for (const auto& op : ops) {
      if (op->name() == "mpi_alltoall") in_flight.push_back(op->start(swap));
    }
    in_flight.push_back(op_->start(sum.batch()));
    drive(world_, std::move(in_flight), random);
    sum.check();
    for (int from = 0; from < world_.size; ++from) {
      ASSERT_EQ(got[static_cast<size_t>(from)], from);
    }
  }
}

}  // namespace
}  // namespace horon::ops
