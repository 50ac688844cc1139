// Communicators of a job and of parts of it, on one host or on several.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/config.h"
#include "horon/ops/builtin.h"
#include "horon/ops/communicator/communicator_maker.h"
#include "horon/ops/communicator/mpi_communicator_call.h"
#include "horon/tests/ops/mpi_world.h"
#include "horon/tests/support/mpi_main.h"

namespace horon::ops {
namespace {

class Communicators : public testing::Test {
 protected:
  void SetUp() override { world_ = maker_.make_world(64); }

  // Every member sees the others, in MPI and in the shared memory of its host.
  void expect_complete(const Communicator& communicator) {
    const core::Topology& topology = communicator.topology();
    const auto mpi = *static_cast<const MPI_Comm*>(communicator.mpi());
    int rank = -1;
    MPI_Comm_rank(mpi, &rank);
    EXPECT_EQ(rank, topology.rank);
    std::vector<int> members(static_cast<size_t>(topology.size));
    const int me = test_rank();
    MPI_Allgather(&me, 1, MPI_INT, members.data(), 1, MPI_INT, mpi);
    EXPECT_EQ(members, communicator.members());
    ASSERT_TRUE(communicator.local_group().available());
    EXPECT_EQ(communicator.local_group().local_size(), topology.local_size);
    auto* const places = reinterpret_cast<int*>(communicator.area());
    places[topology.local_rank] = me + 1;
    MPI_Barrier(mpi);
    const std::vector<int> on_this_host = communicator.members_of_this_host();
    for (size_t i = 0; i < on_this_host.size(); ++i) EXPECT_EQ(places[i], on_this_host[i] + 1);
    MPI_Barrier(mpi);
  }

  std::shared_ptr<Communicator> make(const std::vector<int>& members) {
    return maker_.make(*world_, bootstrap_, {"a test", ++id_, members});
  }

  core::MpiLibrary library_;
  core::MpiBootstrap bootstrap_{library_, nullptr, core::Config::from_environment().host_id};
  CommunicatorMaker maker_{library_, bootstrap_, {.area_bytes = [](const core::Topology& topology) {
                             // The bytes that expect_complete() uses.
                             const size_t own =
                                 sizeof(int) * static_cast<size_t>(topology.local_size);
                             return std::max(own, builtin_area_bytes(topology, core::Config()));
                           }}};
  std::shared_ptr<Communicator> world_;
  uint32_t id_ = 0;
};

TEST_F(Communicators, TheWorldIsOne) {
  expect_complete(*world_);
  EXPECT_EQ(world_->members_of_this_host(), bootstrap_.topology().local_ranks);
  EXPECT_EQ(world_->area(), world_->local_group().area() + 64);
}

// The parts of a hierarchical collective: the ranks of each host, all hosts in one call, and the
// first rank of each.
TEST_F(Communicators, AreSplitByHosts) {
  const auto local = make(world_->members_of_this_host());
  ASSERT_NE(local, nullptr);
  EXPECT_TRUE(local->topology().one_host());
  EXPECT_EQ(local->topology().rank, bootstrap_.topology().local_rank);
  expect_complete(*local);
  const std::vector<int> leaders = world_->leaders();
  const bool leads = std::ranges::count(leaders, test_rank()) > 0;
  const auto across = make(leads ? leaders : std::vector<int>{});
  ASSERT_EQ(across != nullptr, leads);
  if (!leads) return;
  EXPECT_EQ(across->topology().local_size, 1);
  EXPECT_EQ(across->topology().host_count(), bootstrap_.topology().host_count());
  expect_complete(*across);
}

TEST_F(Communicators, OfASetAreSplitInTheSameWay) {
  std::vector<int> all_but_first;
  for (int rank = 1; rank < test_size(); ++rank) all_but_first.push_back(rank);
  const bool member = test_rank() > 0;
  const auto set = make(member ? all_but_first : std::vector<int>{});
  std::vector<int> local;
  if (member) {
    expect_complete(*set);
    local = set->members_of_this_host();
  }
  const auto part = make(local);
  if (member) expect_complete(*part);
}

// To free a communicator is collective, and a rank that gives up in the middle would do it alone.
TEST_F(Communicators, WhatNobodyTookIsNotFreed) {
  static int freed;
  freed = 0;
  int key = MPI_KEYVAL_INVALID;
  const auto count = [](MPI_Comm, int, void*, void*) { return ++freed, MPI_SUCCESS; };
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, count, &key, nullptr);
  const auto make_one = [&, id = ++id_] {
    auto communicator = std::make_unique<MpiCommunicator>(bootstrap_, world_->members(), id);
    MPI_Comm_set_attr(*static_cast<const MPI_Comm*>(communicator->handle()), key, nullptr);
    return communicator;
  };
  for (const bool takes : {false, true}) {
    {
      MpiCommunicatorCall call(library_, make_one);
      while (!call.wait(std::chrono::seconds(1))) {
      }
      ASSERT_EQ(call.failure(), "");
      if (takes) call.take();
    }
    EXPECT_EQ(freed, takes ? 1 : 0);
  }
  MPI_Comm_free_keyval(&key);
}

TEST_F(Communicators, HaveOpsOfOneKind) {
  const auto local = make(world_->members_of_this_host());
  const core::Config config;
  const auto name_in = [&](const Communicator& communicator) {
    const core::Executor::Parts parts = make_execution(communicator, config, nullptr);
    return std::string(parts.ops->select({.count = 5}).name());
  };
  EXPECT_EQ(name_in(*local), "shm_allreduce");
  EXPECT_EQ(name_in(*world_), world_->topology().one_host() ? "shm_allreduce" : "hier_allreduce");
}

// A member that is alone on its host has nobody there to share memory with.
TEST_F(Communicators, NeedNoMemoryWhereOneMemberIsAlone) {
  const core::Topology& topology = bootstrap_.topology();
  if (topology.one_host()) GTEST_SKIP() << "for several hosts";
  const core::Config config;
  CommunicatorMaker::Options options;
  options.area_bytes = [&](const core::Topology& of) { return builtin_area_bytes(of, config); };
  options.shared_memory = topology.local_size > 1;
  const CommunicatorMaker maker(library_, bootstrap_, options);
  const auto world = maker.make_world(0);
  const auto set = maker.make(*world, bootstrap_, {"a test", ++id_, world->members()});
  for (const Communicator* communicator : {world.get(), set.get()}) {
    EXPECT_EQ(communicator->local_group().available(), topology.local_size > 1);
    EXPECT_EQ(make_gate(*communicator, config), nullptr);  // it needs memory on each rank
    const core::Executor::Parts parts = make_execution(*communicator, config, nullptr);
    core::CollectiveOp& op = parts.ops->select({.count = 50'000});
    EXPECT_EQ(op.name(), "hier_allreduce");
    std::vector<float> values(50'000, 1);
    core::Batch batch;
    batch.count = static_cast<int64_t>(values.size());
    batch.input = batch.output = reinterpret_cast<std::byte*>(values.data());
    const auto flight = op.start(std::move(batch));
    while (flight->step() != core::Progress::Done) {
    }
    EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(topology.size)));
    MPI_Barrier(MPI_COMM_WORLD);  // no rank unmaps memory that another one still uses
  }
}

}  // namespace
}  // namespace horon::ops
