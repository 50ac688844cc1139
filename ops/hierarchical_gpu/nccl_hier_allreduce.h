// Allreduce of the memory of GPUs on several hosts: NCCL within each host, messages between hosts.
// For clusters whose network NCCL can't use well, and for gradients that travel in fewer bytes
// (HORON_WIRE_DTYPE, Compression::Int8), which NCCL's own collectives can't.
//
// A batch is cut into pieces, and NCCL sums a host's inputs to a piece into one shard for each lane
// (host_shards.h). The GPU that has the shard copies it into pinned host memory, from where the
// GPUs of the lane exchange their sums as hosts of one rank each do (hierarchical_allreduce.h). The
// result goes back, and NCCL gives it to all GPUs of the host. Several pieces are under way at a
// time, so the device, the bus and the wire are busy together, and long batches take no more host
// memory.
//
// The host drives it: it looks at events, and never waits for one. Sums of a host, and what is not
// rounded for the wire, have the type of the batch, so 16-bit floats are rounded as in nccl_ops.h.
// The sum over the hosts is made in float32 and rounded once. In Min and Max a number wins over a
// NaN within a host, as in NCCL, and a NaN wins between hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/hierarchical/chunked_run.h"
#include "horon/ops/hierarchical_gpu/shard_piece.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/nccl/job_gpu.h"

namespace horon::ops {

class NcclHierAllreduce final : public core::CollectiveOp {
 public:
  // `between_hosts`: of the members, with shared memory on each host that has several. Its area has
  // area_bytes(), for this op alone, and its messages have tags that nobody else uses. `set`: the
  // set's number. `members`: those of this host, for texts: "ranks 0, 1".
  NcclHierAllreduce(const std::shared_ptr<JobGpu>& gpu, const BetweenHosts& between_hosts,
                    uint32_t set, const std::string& members);
  static size_t area_bytes(const core::Topology& topology);

  std::string_view name() const override { return "nccl_hier_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  core::PieceSizes piece_sizes(const core::Batch& like) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;
  void abort() noexcept override;
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept override;

 private:
  class Flight;

  void connect_host(const std::shared_ptr<JobGpu>& gpu, const BetweenHosts& between_hosts,
                    uint32_t set, const std::string& members);

  // How many elements the pieces of a batch have.
  int64_t piece_elements(const core::Batch& batch, int64_t piece_bytes) const;

  const HostsLayout layout_;
  const WireType wire_type_;  // as in BetweenHosts
  CudaQueue sums_, to_host_, to_device_;
  PinnedSlots slots_;
  std::unique_ptr<HierarchicalAllreduce> between_;  // null: this rank has no lane
  // With these the members of a host agree on what enters their devices; null if this rank is
  // alone. Calls of the two lines alternate, so each line has its own.
  std::unique_ptr<SharedMemoryAllreduce> reduce_turns_;
  std::unique_ptr<SharedMemoryAllreduce> gather_turns_;
  std::shared_ptr<NcclCommunicator> host_;
  std::unique_ptr<NcclLine> reduce_line_;
  std::unique_ptr<NcclLine> gather_line_;
  std::unique_ptr<ShardTools> tools_;  // refers to the members above
  // Pieces are numbered over all batches, and begin in that order.
  uint64_t numbered_ = 0;
  uint64_t begun_ = 0;
};

}  // namespace horon::ops
