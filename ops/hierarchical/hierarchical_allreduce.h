// Allreduce of host memory among ranks on several hosts.
//
// The batch is cut into chunks, each driven by one rank of each host (exchange_plan.h). That rank
// adds the inputs of its host where they lie, exchanges the sums with its peers on the other hosts
// (chunk_exchange.h) and writes the results into the memory of all ranks of its host
// (host_share.h). Several chunks are under way at a time, so the wire and the memory are busy
// together (chunked_run.h).
//
// Long sums of float32 may be rounded for the way between the hosts (wire_type.h). Memory, and all
// sums, stay float32.
//
// Sums are made in one order, which depends neither on time nor on who makes them: all ranks get
// the same bits, and the same again in another run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/hierarchical/chunked_run.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class HierarchicalAllreduce final : public core::CollectiveOp {
 public:
  explicit HierarchicalAllreduce(BetweenHosts parts) : common_(std::move(parts)) {}
  static size_t area_bytes(const core::Topology& topology) {
    return ChunkedRun::area_bytes(topology);
  }

  std::string_view name() const override { return "hier_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  core::PieceSizes piece_sizes(const core::Batch& like) const override;
  // False if sums are rounded for the wire: once or twice, depending on the length of the batch.
  bool same_in_parts(const core::Batch& like) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  ChunkedRun::Common common_;
};

}  // namespace horon::ops
