// How the GPUs of one host share an allreduce between hosts. Each lane (exchange_plan.h) has a
// shard of the batch; the first GPUs of all hosts form a lane, the second ones another, and so on.
// NCCL sums the host's inputs into the shards, and later gives each finished shard to all GPUs of
// the host.
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

  // The last lane has short batches alone: shorter messages would cost no less.
  HostShards(int64_t count, DataType dtype, int lanes);

  // Empty for ranks without a lane.
  Stretch of(int lane) const;
  // The elements of each lane. The last lane also has rest(): fewer than kAlignment for each lane,
  // or all of a short batch, for which each() is 0.
  int64_t each() const { return each_; }
  int64_t rest() const { return count_ - each_ * lanes_; }
  int lanes() const { return lanes_; }

  // In elements: shards begin where a message between hosts may.
  static constexpr int64_t kAlignment = WireType::kAlignment;
  // A shard has this length if the batch is long enough, unless less is asked for. It may be longer
  // by as much as short batches have.
  static constexpr int64_t kBytes = 4 << 20;
  static constexpr int64_t kBytesLeast = 64 << 10;
  // The elements of the longest batch whose shards have at most bytes_max(). `piece_bytes`: the
  // length of a batch that is asked for, as Batch::piece_bytes.
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

  // Sums each lane's shard into its place in the output of the rank that has the lane.
  void reduce(NcclApi& nccl, NcclComm comm, const std::byte* input, std::byte* output) const;
  // Copies the shards from there to the outputs of all ranks.
  void gather(NcclApi& nccl, NcclComm comm, std::byte* output) const;

 private:
  int64_t bytes(int64_t elements) const { return elements * static_cast<int64_t>(size_of(dtype)); }
  // Each rank has a lane: one call of NCCL serves for all.
  bool all_have_lanes() const { return size == shards.lanes(); }
};

}  // namespace horon::ops
