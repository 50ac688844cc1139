// Collectives on tensors: allreduce, broadcast and allgather, each in four or two forms.
//
//   y = allreduce(x, {...})          waits, gives a new tensor
//   allreduce_(x, {...})             waits, x holds the result
//   h = allreduce_async(x, {...})    returns at once; h.poll(), h.wait()
//   h = allreduce_async_(x, {...})   the same, into x
//
// Every rank makes the same calls; the order in which named tensors are submitted may differ from
// rank to rank. What must agree (kind, dtype, shape, op, root, scales) is checked: where it differs
// every rank that submitted the tensor gets Error(Mismatch) from wait(), naming the tensor, the
// ranks and both values, and the session goes on.
//
// Tensors: dense, in host memory, of any shape (scalars and 0 elements too); float32, float64,
// float16, bfloat16, int8, uint8, int16, int32, int64 and bool. Any strides: results are row-major,
// in-place calls keep the strides of the tensor. Between the call and the end of wait() the input
// may not be written and an in-place tensor may not be touched; the handle's operation keeps the
// memory alive by itself. Results carry no autograd history, in-place calls write as under
// NoGradGuard. Any thread may call.
//
// Errors: InvalidArgument (this call: undefined, sparse, wrong device or dtype, root out of range),
// DuplicateName (the name is in flight on this rank), NotInitialized from the call; Mismatch,
// RankLeft, Stall, PeerDead, OperationFailed from wait().
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"

namespace horon {

namespace torch_detail {
struct PendingCollective;
}

// A collective under way. Copies speak of the same one. Letting go of a handle without wait() is
// fine: the collective goes on; but then nobody hears of its failure, and an in-place tensor that
// is not contiguous stays as it was.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::shared_ptr<torch_detail::PendingCollective> pending);

  // Has it ended (well or badly)? Never blocks.
  bool poll() const;
  // Blocks until it has ended; the result, the same tensor each time. Throws its error, each time.
  at::Tensor wait() const;
  // As wait(), but throws Error(Timeout) when the time is over. The collective goes on, and may be
  // waited for again.
  at::Tensor wait(std::chrono::nanoseconds timeout) const;

 private:
  torch_detail::PendingCollective& pending() const;
  std::shared_ptr<torch_detail::PendingCollective> pending_;
};

struct AllreduceOptions {
  // What the tensor is called on all ranks. Empty: "allreduce.noname.N", counted in the order of
  // the calls, which must then be the same on all ranks.
  std::string name = {};
  // Average of integers: the sum divided by the number of ranks, rounded toward zero. No Average of
  // bool. Sum and Max of bool are "or", Product and Min are "and". 16-bit floating types are summed
  // in float32 and rounded once.
  ReduceOp op = ReduceOp::Average;
  // result = postscale * op(prescale * x); floating types only.
  double prescale = 1.0;
  double postscale = 1.0;
};

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor& allreduce_(at::Tensor& tensor, const AllreduceOptions& options = {});
Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
Handle allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options = {});

struct BroadcastOptions {
  std::string name = {};  // empty: "broadcast.noname.N"
  int root = 0;           // the rank whose values all ranks get
};

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options = {});
at::Tensor& broadcast_(at::Tensor& tensor, const BroadcastOptions& options = {});
Handle broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options = {});
Handle broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options = {});

struct AllgatherOptions {
  std::string name = {};  // empty: "allgather.noname.N"
};

// The tensors of all ranks one after the other along the first dimension, in the order of ranks:
// [n0 + n1 + ..., d1, ...] from [n_rank, d1, ...]. The first dimension may differ from rank to rank
// (0 too), the others may not. Scalars become rows: N ranks give a tensor of shape [N].
at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options = {});
Handle allgather_async(const at::Tensor& tensor, const AllgatherOptions& options = {});

}  // namespace horon
