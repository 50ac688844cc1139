// Allreduce of host memory among ranks on several hosts.
//
// The batch is cut into chunks, each driven by one rank of each host (exchange_plan.h). That rank
// adds the inputs of its host where they lie, exchanges the sums with its peers on the other hosts
// (chunk_exchange.h) and writes the results into the memory of all ranks of its host
// (host_share.h). Several chunks are under way at a time, so the wire and the memory are busy
// together.
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
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/host_cells.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

class HierarchicalAllreduce final : public core::CollectiveOp {
 public:
  struct Parts {
    core::Topology topology;  // of the members
    std::shared_ptr<Messages> messages;
    std::shared_ptr<core::ScratchPool> scratch;
    // The members of this host, and area_bytes() of zeroed memory that they share, 64-byte aligned;
    // not used if every member is alone on its host. The group outlives the op.
    core::LocalGroup* group = nullptr;
    std::byte* area = nullptr;
  };
  explicit HierarchicalAllreduce(Parts parts);
  ~HierarchicalAllreduce() override;
  static size_t area_bytes(const core::Topology& topology);

  std::string_view name() const override { return "hier_allreduce"; }
  std::string refusal(const core::BatchFacts& facts) const override;
  std::unique_ptr<core::InFlight> start(core::Batch batch) override;

 private:
  class Running;
  // More would not make the wire faster. Less than half of HostCells::kCells and of the batches
  // that have tags of their own: a rank may be so many allreduces ahead of another one.
  static constexpr uint64_t kAtOnce = 4;

  void note_ended(uint64_t number);

  const Parts parts_;
  const HostsLayout layout_;
  std::unique_ptr<HostCells> cells_;  // null if this rank is alone on its host
  uint64_t next_ = 0;
  uint64_t ended_through_ = 0;          // all allreduces below have ended on this rank
  bool ended_[HostCells::kCells] = {};  // those from there on
};

}  // namespace horon::ops
