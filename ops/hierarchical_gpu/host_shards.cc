#include "horon/ops/hierarchical_gpu/host_shards.h"

#include <algorithm>

namespace horon::ops {

HostShards::HostShards(int64_t count, DataType dtype, int lanes) : count_(count), lanes_(lanes) {
  const int64_t each = count / lanes / kAlignment * kAlignment;
  if (each * static_cast<int64_t>(size_of(dtype)) >= kLaneBytesMin) each_ = each;
}

int64_t HostShards::batch_elements(DataType dtype, int lanes, int64_t piece_bytes) {
  const int64_t wish = piece_bytes == 0 ? kBytes : piece_bytes / lanes;
  const int64_t bytes = std::clamp(wish, kBytesLeast, kBytes);
  return bytes / static_cast<int64_t>(size_of(dtype)) / kAlignment * kAlignment * lanes;
}

int64_t HostShards::bytes_max(int lanes) { return kBytes + lanes * kLaneBytesMin; }

HostShards::Stretch HostShards::of(int lane) const {
  if (lane >= lanes_) return {count_, 0};
  return {lane * each_, lane == lanes_ - 1 ? each_ + rest() : each_};
}

void ShardCalls::reduce(NcclApi& nccl, NcclComm comm, const std::byte* input,
                        std::byte* output) const {
  const auto reduce_to = [&](int root, int64_t begin, int64_t count) {
    if (count == 0) return;
    nccl.reduce(comm, input + bytes(begin), root == rank ? output + bytes(begin) : nullptr, count,
                dtype, op, root, stream);
  };
  const int64_t each = shards.each();
  const int last = shards.lanes() - 1;
  if (all_have_lanes() && each > 0) {
    nccl.reduce_scatter(comm, input, output + bytes(rank * each), each, dtype, op, stream);
  } else {
    for (int lane = 0; lane <= last; ++lane) reduce_to(lane, lane * each, each);
  }
  reduce_to(last, shards.lanes() * each, shards.rest());
}

void ShardCalls::gather(NcclApi& nccl, NcclComm comm, std::byte* output) const {
  const auto give_from = [&](int root, int64_t begin, int64_t count) {
    std::byte* const place = output + bytes(begin);
    if (count > 0) nccl.broadcast(comm, place, place, bytes(count), root, stream);
  };
  const int64_t each = shards.each();
  const int last = shards.lanes() - 1;
  if (all_have_lanes() && each > 0) {
    nccl.allgather(comm, output + bytes(rank * each), output, bytes(each), stream);
  } else {
    for (int lane = 0; lane <= last; ++lane) give_from(lane, lane * each, each);
  }
  give_from(last, shards.lanes() * each, shards.rest());
}

}  // namespace horon::ops
