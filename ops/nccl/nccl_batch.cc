#include "horon/ops/nccl/nccl_batch.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/execution/block_layout.h"

namespace horon::ops {
namespace {

using core::Batch;

bool all_equal(const core::BlockCounts& counts) {
  return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
}

}  // namespace

NcclBatch::NcclBatch(Batch batch, int rank, int size)
    : batch_(std::move(batch)),
      queue_(static_cast<CudaQueue*>(batch_.queue)),
      rank_(rank),
      size_(size),
      reduction_(nccl_reduction(batch_)) {
  HORON_CHECK(queue_ != nullptr, "memory of a device has a queue");
  if (core::reduces(batch_.kind)) plan_scales();
}

void NcclBatch::plan_scales() {
  const int64_t count = batch_.count;
  std::byte* const output = batch_.output;
  const DataType dtype = batch_.dtype;
  if (!is_floating(dtype)) {
    if (batch_.divisor == 1 || count == 0) return;
    after_ = one_move(MoveLaunch::divide(dtype, batch_.divisor), output, output, count);
    return;
  }
  input_factor_ = batch_.prescale * reduction_.part;
  const double behind = batch_.postscale / (reduction_.part * static_cast<double>(batch_.divisor));
  if (behind == 1.0 || count == 0) return;
  after_ = one_move(MoveLaunch::scale(dtype, dtype, behind), output, output, count);
}

void NcclBatch::enqueue_before() {
  const bool has_blocks = batch_.kind == CollectiveKind::Reducescatter;
  const int64_t count = has_blocks ? core::total(batch_.send_counts) : batch_.count;
  if (input_factor_ == 1.0 || count == 0) return;
  std::byte* to = batch_.output;
  if (has_blocks) {
    scratch_ = queue_->allocate(static_cast<size_t>(count) * size_of(batch_.dtype));
    to = scratch_.get();
  }
  queue_->launch(one_move(MoveLaunch::scale(batch_.dtype, batch_.dtype, input_factor_),
                          batch_.input, to, count));
  batch_.input = to;
}

void NcclBatch::enqueue_after() {
  if (after_) queue_->launch(*after_);
  scratch_.reset();
}

void NcclBatch::call(NcclApi& nccl, NcclComm comm) const {
  const auto bytes = batch_.count * static_cast<int64_t>(size_of(batch_.dtype));
  switch (batch_.kind) {
    case CollectiveKind::Allreduce:
      if (batch_.count == 0) return;
      nccl.allreduce(comm, batch_.input, batch_.output, batch_.count, reduction_.dtype,
                     reduction_.op, stream());
      return;
    case CollectiveKind::Broadcast:
      if (bytes == 0) return;
      nccl.broadcast(comm, batch_.input, batch_.output, bytes, batch_.root, stream());
      return;
    case CollectiveKind::Allgather:
      return allgather(nccl, comm);
    case CollectiveKind::Reducescatter:
      return reducescatter(nccl, comm);
    case CollectiveKind::Alltoall:
    case CollectiveKind::Gather:
    case CollectiveKind::Scatter:
      return exchange(nccl, comm);
    case CollectiveKind::Barrier:
      return;
  }
}

void NcclBatch::allgather(NcclApi& nccl, NcclComm comm) const {
  const auto size = static_cast<int64_t>(size_of(batch_.dtype));
  if (all_equal(batch_.receive_counts)) {
    if (batch_.count == 0) return;
    return nccl.allgather(comm, batch_.input, batch_.output, batch_.count * size, stream());
  }
  std::byte* output = batch_.output;
  for (int root = 0; root < size_; ++root) {
    const int64_t bytes = batch_.receive_counts[static_cast<size_t>(root)] * size;
    if (bytes > 0) {
      nccl.broadcast(comm, root == rank_ ? batch_.input : output, output, bytes, root, stream());
    }
    output += bytes;
  }
}

void NcclBatch::reducescatter(NcclApi& nccl, NcclComm comm) const {
  if (all_equal(batch_.send_counts)) {
    if (batch_.count == 0) return;
    return nccl.reduce_scatter(comm, batch_.input, batch_.output, batch_.count, reduction_.dtype,
                               reduction_.op, stream());
  }
  const std::byte* input = batch_.input;
  for (int root = 0; root < size_; ++root) {
    const int64_t count = batch_.send_counts[static_cast<size_t>(root)];
    if (count > 0) {
      nccl.reduce(comm, input, root == rank_ ? batch_.output : nullptr, count, reduction_.dtype,
                  reduction_.op, root, stream());
    }
    input += static_cast<size_t>(count) * size_of(batch_.dtype);
  }
}

void NcclBatch::exchange(NcclApi& nccl, NcclComm comm) const {
  const auto size = static_cast<int64_t>(size_of(batch_.dtype));
  const std::byte* input = batch_.input;
  std::byte* output = batch_.output;
  for (int other = 0; other < size_; ++other) {
    const int64_t sent = batch_.send_counts[static_cast<size_t>(other)] * size;
    const int64_t received = batch_.receive_counts[static_cast<size_t>(other)] * size;
    if (sent > 0) nccl.send(comm, input, sent, other, stream());
    if (received > 0) nccl.receive(comm, output, received, other, stream());
    input += sent;
    output += received;
  }
}

}  // namespace horon::ops
