// How the GPUs of one host share an allreduce between hosts: each lane (exchange_plan.h) has a
// shard of the batch, which the first GPUs of all hosts have, or the second, and so on. NCCL sums
// the host's inputs into the shards, and gives each shard that is back to all GPUs of the host.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horon/core/base/dtype.h"
#include "horon/core/base/entry_spec.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/wire_type.h"
#include "horon/ops/nccl/nccl_api.h"

namespace horon::ops {

// Pure facts, the same on all ranks: as many lanes as the host with the fewest members has.
class HostShards {
 public:
  using Stretch = ExchangePlan::Stretch;

  // Short batches are the last lane's alone: messages that carry little cost no less.
  HostShards(int64_t count, DataType dtype, int lanes);

  // Empty for ranks without a lane.
  Stretch of(int lane) const;
  // Of each lane; the last one also has `rest()`: fewer than kAlignment for each lane, or all of a
  // short batch, where each() is 0.
  int64_t each() const { return each_; }
  int64_t rest() const { return count_ - each_ * lanes_; }
  int lanes() const { return lanes_; }

  // Elements: shards begin where a message between hosts may.
  static constexpr int64_t kAlignment = WireType::kAlignment;
  // A shard is as long if the batch has enough, and nobody asks for less; it may be longer by what
  // short ones are.
  static constexpr int64_t kBytes = 4 << 20;
  static constexpr int64_t kBytesLeast = 64 << 10;
  // Of the longest batch whose shards have at most bytes_max(). `piece_bytes`: of a batch, as
  // Batch::piece_bytes.
  static int64_t batch_elements(DataType dtype, int lanes, int64_t piece_bytes = 0);
  static int64_t bytes_max(int lanes);

 private:
  int64_t count_;
  int64_t each_ = 0;
  int lanes_;
};

// The calls of one member of a host, between begin_group() and end_group(). Both buffers have the
// whole batch, in memory of the device; they may be the same.
struct ShardCalls {
  const HostShards& shards;
  DataType dtype = DataType::Float32;  // as NCCL knows it
  ReduceOp op = ReduceOp::Sum;
  int rank = 0;  // in the host's communicator; the lane, if it is less than their number
  int size = 1;
  CudaStream stream = nullptr;

  // Each lane's shard, in its place in the output of the rank that has the lane.
  void reduce(NcclApi& nccl, NcclComm comm, const std::byte* input, std::byte* output) const;
  // From there to the outputs of all.
  void gather(NcclApi& nccl, NcclComm comm, std::byte* output) const;

 private:
  int64_t bytes(int64_t elements) const { return elements * static_cast<int64_t>(size_of(dtype)); }
  // Each rank has a lane: one call of NCCL serves for all.
  bool all_have_lanes() const { return size == shards.lanes(); }
};

}  // namespace horon::ops
