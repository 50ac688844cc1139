// One piece of an allreduce of GPUs on several hosts, on one rank: from the inputs of its host to
// the outputs, by way of NCCL, pinned memory and the wire.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/cuda/cuda_memory.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/hierarchical_allreduce.h"
#include "horon/ops/hierarchical_gpu/host_shards.h"
#include "horon/ops/hierarchical_gpu/pinned_slots.h"
#include "horon/ops/nccl/nccl_line.h"
#include "horon/ops/nccl/nccl_reduction.h"

namespace horon::ops {

// What the pieces of a set use on one rank.
struct ShardTools {
  const HostsLayout& layout;
  // NCCL's stream, and one for each direction of the bus.
  CudaQueue& sums;
  CudaQueue& to_host;
  CudaQueue& to_device;
  PinnedSlots& slots;
  HierarchicalAllreduce* between;  // the ranks of this lane; null: this rank has none
  // Null if this rank is alone on its host.
  NcclLine* reduce_line;
  NcclLine* gather_line;
};

// Pieces begin in the order of their numbers, on every rank. One thread at a time.
class ShardPiece {
 public:
  // `batch`: of the piece alone. Its slot has been taken, and has memory if there is a shard here.
  ShardPiece(ShardTools& tools, core::Batch batch, const HostShards& shards, uint64_t number);
  ShardPiece(const ShardPiece&) = delete;
  ShardPiece& operator=(const ShardPiece&) = delete;

  // As InFlight::step(). If it throws, the job ends, and the piece must not be destroyed, since
  // others may still use its memory.
  core::Progress step();

 private:
  enum class Stage : uint8_t {
    Reducing,
    ReduceCalled,  // NCCL may still be putting it into the stream
    LeavingDevice,
    BetweenHosts,
    Gathering,
    GatherCalled,
    EnteringDevice,
  };

  bool alone() const { return tools_.reduce_line == nullptr; }
  bool has_shard() const { return mine_.count > 0; }
  bool scales_before() const;
  void start_between_hosts();
  core::Progress exchange();
  void reduce();
  void gather();
  void copy_to_host();
  bool happened();
  void check() const;
  ShardCalls calls() const;
  size_t bytes_of_shard() const;
  std::byte* shard_on_host() const { return tools_.slots.memory(number_); }
  std::byte* shard_on_device() const;

  ShardTools& tools_;
  const core::Batch batch_;
  const std::byte* input_;  // scaled, if it must be
  const NcclReduction reduction_;
  const HostShards shards_;
  const HostShards::Stretch mine_;
  const uint64_t number_;
  std::unique_ptr<core::InFlight> between_;
  uint64_t reduce_turn_ = 0;
  uint64_t gather_turn_ = 0;
  Stage stage_ = Stage::Reducing;
  std::shared_ptr<core::Event> event_;  // the next stage begins when it has happened
};

}  // namespace horon::ops
