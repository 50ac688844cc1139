// Threads of one process that act as ranks of several hosts, and the parts of which ops between
// hosts are made there.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/round_up.h"
#include "horon/ops/hierarchical/chunked_run.h"
#include "horon/ops/host/host_memory.h"
#include "horon/tests/ops/op_contract.h"
#include "horon/tests/support/thread_messages.h"
#include "horon/tests/support/thread_ranks.h"

namespace horon::ops {

using MakeMessages = std::function<std::shared_ptr<Messages>(MessageHub& hub, int rank)>;

inline std::shared_ptr<Messages> thread_messages(MessageHub& hub, int rank) {
  return std::make_shared<ThreadMessages>(hub, rank);
}

// The parts of a second op, beside one that has `parts`.
inline BetweenHosts parts_of_second_op(BetweenHosts parts) {
  parts.area += core::whole_cache_lines(ChunkedRun::area_bytes(parts.topology));
  return parts;
}

// Rank r is on host hosts[r]. Returns the most bytes of scratch memory that a rank has held. The
// parts are for one op.
inline size_t with_thread_hosts(
    const std::vector<int>& hosts,
    const std::function<void(const World& world, const BetweenHosts& parts)>& body,
    const MakeMessages& make_messages = thread_messages) {
  const int size = static_cast<int>(hosts.size());
  core::InProcessJob job(hosts);
  MessageHub hub;
  std::vector<size_t> scratch_peaks(hosts.size());
  core::run_ranks(size, [&](int rank) {
    const core::Topology& topology = job.of(rank).topology();
    const size_t area_bytes = core::whole_cache_lines(ChunkedRun::area_bytes(topology));
    const auto group = core::LocalGroup::create(job.of(rank), 2 * area_bytes + 64);
    ASSERT_TRUE(group->available()) << group->unavailable_reason();
    std::vector<std::unique_ptr<core::MemoryDomain>> domains;
    domains.push_back(std::make_unique<HostMemory>(group.get()));
    BetweenHosts parts;
    parts.topology = topology;
    parts.messages = make_messages(hub, rank);
    parts.scratch = std::make_shared<core::ScratchPool>(std::move(domains));
    parts.group = group.get();
    parts.area = group->area();
    World world;
    world.rank = rank;
    world.size = size;
    world.doorbell = &group->doorbell(topology.local_rank);
    world.allocate = [&](size_t bytes) { return group->allocate(bytes); };
    world.gather = [&](uint64_t mine) {
      return core::allgather_values(job.of(rank), core::Bootstrap::Among::Job, mine);
    };
    body(world, parts);
    world.gather(0);  // no rank unmaps memory that another one still uses
    scratch_peaks[static_cast<size_t>(rank)] = parts.scratch->usage().bytes_peak;
  });
  EXPECT_TRUE(hub.empty());
  return *std::max_element(scratch_peaks.begin(), scratch_peaks.end());
}

inline std::string layout_name(const testing::TestParamInfo<std::vector<int>>& tested) {
  std::string name = "hosts";
  for (const int host : tested.param) name += "_" + std::to_string(host);
  return name;
}

}  // namespace horon::ops
