// Allreduce of the memory of GPUs on several hosts: NCCL within each host, messages between hosts.
// For clusters whose network NCCL can't use well, and for gradients that travel in fewer bytes
// (HORON_WIRE_DTYPE, Compression::Int8), which NCCL's own collectives can't.
//
// NCCL sums the inputs of a host into one shard for each lane (host_shards.h). The GPU that has it
// copies it into pinned host memory, from where the GPUs of the lane exchange their sums as hosts
// of one rank each do (hierarchical_allreduce.h). The result goes back, and NCCL gives it to all
// GPUs of the host. Several batches are under way at a time, so NVLink, PCIe and the wire are busy
// together.
//
// The host drives it: it looks at events, and never waits for one. The sums of a host, and what
// nobody rounds for the wire, have the type of the batch, so 16-bit floats are rounded as in
// nccl_ops.h on the way; the sum over the hosts is made in float32 and rounded once.
#pragma once

#include <memory>
#include <string>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/ops/cuda/pinned_memory.h"
#include "horon/ops/hierarchical/chunked_run.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/host/shared_memory_allreduce.h"
#include "horon/ops/nccl/job_gpu.h"
#include "horon/ops/nccl/nccl_line.h"

namespace horon::ops {

class NcclHierAllreduce final : public core::CollectiveOp {
 public:
  // `between_hosts`: of the members, with shared memory on each host that has several. Its area has
  // area_bytes(), for this op alone, and its messages have tags that nobody else uses. `set` and
  // `members`: of the process set, the latter for messages about this host: "ranks 0, 1".
  NcclHierAllreduce(std::shared_ptr<JobGpu> gpu, const BetweenHosts& between_hosts, uint32_t set,
                    const std::string& members);
  static size_t area_bytes(const core::Topology& topology);

  std::string_view name() const override { return "nccl_hier_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;
  void abort() noexcept override;
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept override;

 private:
  class Flight;

  // How the members of a host agree on what enters their devices. The two lines meet each other's
  // calls in between, so each has its own.
  void connect_host(const std::shared_ptr<JobGpu>& gpu, const BetweenHosts& between_hosts,
                    uint32_t set, const std::string& members);

  const HostsLayout layout_;
  core::ScratchPool pinned_;
  CudaQueue& queue_;                                // of the pinned memory
  std::unique_ptr<HierarchicalAllreduce> between_;  // null: this rank has no lane
  // Null if this rank is alone on its host.
  std::unique_ptr<SharedMemoryAllreduce> reduce_turns_;
  std::unique_ptr<SharedMemoryAllreduce> gather_turns_;
  std::shared_ptr<NcclCommunicator> host_;
  std::unique_ptr<NcclLine> reduce_line_;
  std::unique_ptr<NcclLine> gather_line_;
};

}  // namespace horon::ops
