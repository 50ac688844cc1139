// The collectives over several hosts on MPI.
#include <gtest/gtest.h>

#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical/hosts_exchange.h"
#include "horon/ops/hierarchical/message_exchange.h"
#include "horon/ops/mpi/mpi_ops.h"
#include "horon/tests/ops/contract_case.h"
#include "horon/tests/ops/hierarchical/hosts_fixture.h"
#include "horon/tests/ops/hierarchical/narrow_wire_contract.h"

namespace horon::ops {
namespace {

class HierarchicalOps : public HostsFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(share_memory(4, ChunkedRun::area_bytes(topology())));
    world_.allocate = [this](size_t bytes) { return group_->allocate(bytes); };
    op_ = std::make_unique<HierarchicalAllreduce>(parts(0));
    exchange_ = std::make_shared<HostsExchange>(parts(1));
  }
  BetweenHosts parts(size_t area, WireType wire_type = {}) {
    return between_hosts(area, make_mpi_messages(&communicator_), wire_type);
  }

  std::unique_ptr<HierarchicalAllreduce> op_;
  std::shared_ptr<HostsExchange> exchange_;
};

TEST_F(HierarchicalOps, Allreduce) { check_allreduce(world_, *op_); }

TEST_F(HierarchicalOps, LongAllreduce) {
  check_long_allreduce(world_, *op_, 1300007);
  check_mixed_places(world_, *op_);
  check_unwanted_outputs(world_, *op_);
}

TEST_F(HierarchicalOps, PiecesThatAreAskedFor) { check_pieces(world_, *op_, 300'007); }

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
  check_reduction_to_one(world_, reducescatter);
}

TEST_F(HierarchicalOps, SumsTravelIn16BitsOrBlocksOfInt8) {
  const std::vector<int>& hosts = topology().host_of;
  if (topology().one_host()) GTEST_SKIP() << "nothing travels";
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
