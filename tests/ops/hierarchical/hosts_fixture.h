// For tests of ops between hosts under mpirun. The launcher says which ranks act as ranks of one
// host.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/round_up.h"
#include "horon/ops/hierarchical/chunked_run.h"
#include "horon/ops/host/host_memory.h"
#include "horon/tests/ops/mpi_world.h"

namespace horon::ops {

class HostsFixture : public testing::Test {
 protected:
  // Allocates memory that the ranks of a host share, for `areas` ops that need up to `area_bytes`
  // each.
  void share_memory(size_t areas, size_t area_bytes) {
    MPI_Comm_dup(MPI_COMM_WORLD, &communicator_);
    area_bytes_ = core::whole_cache_lines(area_bytes);
    group_ = core::LocalGroup::create(bootstrap_, areas * area_bytes_ + 64);
    ASSERT_TRUE(group_->available()) << group_->unavailable_reason();
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(group_.get()));
    scratch_ = std::make_shared<core::ScratchPool>(std::move(domains));
    world_.doorbell = &group_->doorbell(topology().local_rank);
  }
  // The parts of the op that uses this area.
  BetweenHosts between_hosts(size_t area, std::shared_ptr<Messages> messages,
                             WireType wire_type = {}) {
    BetweenHosts parts;
    parts.topology = topology();
    parts.messages = std::move(messages);
    parts.scratch = scratch_;
    parts.group = group_.get();
    parts.area = group_->area() + area * area_bytes_;
    parts.wire_type = wire_type;
    return parts;
  }
  // No rank unmaps memory that another one still uses.
  void TearDown() override {
    world_.gather(0);
    MPI_Comm_free(&communicator_);
  }
  const core::Topology& topology() const { return bootstrap_.topology(); }

  World world_ = mpi_world();
  core::MpiLibrary library_;
  core::MpiBootstrap bootstrap_{library_, nullptr, host_id()};
  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::unique_ptr<core::LocalGroup> group_;
  std::shared_ptr<core::ScratchPool> scratch_;

 private:
  static std::string host_id() {
    const char* const id = std::getenv("HORON_HOST_ID");
    return id == nullptr ? "" : id;
  }

  size_t area_bytes_ = 0;
};

}  // namespace horon::ops
