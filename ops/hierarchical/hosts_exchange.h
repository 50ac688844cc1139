// Broadcast, allgather and reducescatter among ranks on several hosts, each of which has shared
// memory or one rank. Nothing goes to a host twice: its ranks get it from each other's memory.
//
//   - Broadcast and allgather: chunk_spread.h.
//   - Reducescatter: chunk_collect.h, or chunk_relay.h if a few hosts get most of it. The ranks of
//     a host are added in their order, and then the hosts in theirs, or in that of the ring. So the
//     result is the same in every run.
#pragma once

#include <cstddef>
#include <memory>

#include "horon/core/bootstrap/topology.h"
#include "horon/ops/hierarchical/chunked_run.h"
#include "horon/ops/hierarchical/hierarchical_exchange.h"

namespace horon::ops {

class HostsExchange final : public ExchangeMachine {
 public:
  explicit HostsExchange(BetweenHosts parts);
  static size_t area_bytes(const core::Topology& topology) {
    return ChunkedRun::area_bytes(topology);
  }

  bool same_in_parts(const core::Batch& like) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  class BlocksOfBatch;

  const core::Topology topology_;
  ChunkedRun::Common common_;
};

}  // namespace horon::ops
