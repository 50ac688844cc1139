// Collectives on tensors, each waiting or asynchronous, some in place too:
//
//   y = allreduce(x, {...})          waits, gives a new tensor
//   allreduce_(x, {...})             waits, x holds the result; gives x
//   h = allreduce_async(x, {...})    returns at once; h.poll(), h.wait()
//   h = allreduce_async_(x, {...})   the same, into x
//
// In-place forms take a const reference, as in-place methods of LibTorch do: an at::Tensor is a
// handle, so allreduce_(p.grad()) works. grouped_collectives.h has all forms for several tensors at
// once, autograd.h those with derivatives.
//
// At most 1,024 unnamed calls of one kind are in flight on a process set at a time. A further call,
// also an asynchronous one, blocks until the oldest has ended.
//
// The options of every call begin alike: name, op or root, process_set. What is particular to a
// call comes after them. GradientReducerOptions and ObjectOptions keep to this order as well.
//
// Every rank of the process set makes the same calls; the order in which named tensors are
// submitted may differ from rank to rank. What must agree (kind, dtype, shape, op, root, scales,
// compression) is checked: where it differs every rank that submitted the tensor gets
// Error(Mismatch) from wait(), naming the tensor, the ranks and both values, and the session goes
// on.
//
// Tensors: dense, on the CPU or on the GPU of this rank (horon::device()), of any shape (0 elements
// too); float32, float64, float16, bfloat16, int8, uint8, int16, int32, int64, bool, complex64 and
// complex128. What only moves elements also takes uint16, uint32, uint64 and floats of 8 bits. Any
// strides: results are row-major and on the device of the input, in-place calls keep the strides of
// the tensor. Between the call and the end of wait() the input may not be written and an in-place
// tensor may not be touched; the handle's operation keeps the memory alive by itself. Results carry
// no autograd history, in-place calls write as under NoGradGuard. Any thread may call.
//
// On a GPU nothing waits for the device. The collective comes after what the current stream of
// the calling thread has been given (allgather, alltoall, gather and scatter without `output`:
// until the ranks have agreed on the size of the result); wait() returns when the collective has
// been enqueued, and what the current stream of that thread is given from then on comes after
// it. poll() says whether it has been enqueued. Collectives that NCCL lacks (README.md, GPUs)
// run on the host, on copies: wait() then returns when the host is done, and does not wait for
// the copy back.
//
// Errors from the call: InvalidArgument (the tensor is undefined, sparse, of a wrong device or
// dtype; the root or the splits are impossible; this rank is not in the set), NotInitialized,
// DuplicateName (an asynchronous call of the name is in flight on this rank). Errors from wait():
// Mismatch, RankLeft, Stall, PeerDead, OperationFailed, Limit (no memory for a rank's result),
// InvalidArgument (another rank's call has been refused, or the rows do not fit `output`). Where
// LibTorch finds no memory in wait() itself, it throws what LibTorch throws, and may be called
// again.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/runtime/completion_queue.h"
#include "horon/ops/session/process_set.h"

namespace horon {

namespace torch_detail {
class PendingCollective;
}

// The tokens of collectives that have ended, in that order; see Handle::notify(). A thread of the
// program takes them out: none of the program's code runs on the runtime's thread.
using CompletionQueue = core::CompletionQueue;

// A collective under way. Copies refer to the same one. A handle may be dropped without wait(): the
// collective goes on, but its failure is not reported, and results that wait() itself would write
// are not written: an in-place tensor that is not contiguous, that of a reduce on its root, the
// output of a reducescatter with compression.
class Handle {
 public:
  Handle() = default;
  explicit Handle(std::shared_ptr<torch_detail::PendingCollective> pending);

  // Has it ended (well or badly)? Never blocks.
  bool poll() const;
  // Puts the token into the queue once poll() is true: at once, if it already is.
  void notify(const std::shared_ptr<CompletionQueue>& queue, uint64_t token) const;
  // Blocks until it has ended. Returns the result, the same tensor each time, or throws its error,
  // each time.
  at::Tensor wait() const;
  // As wait(), but throws Error(Timeout) when the time is over. The collective then goes on, and
  // wait() may be called again.
  at::Tensor wait(std::chrono::nanoseconds timeout) const;
  // Allgather, gather, alltoall, scatter: the rows of the result that came from each rank of the
  // set. Waits.
  std::vector<int64_t> received_splits() const;

 private:
  std::shared_ptr<torch_detail::PendingCollective> pending_;
};

// The same for a group of tensors.
class GroupHandle {
 public:
  GroupHandle() = default;
  explicit GroupHandle(std::shared_ptr<torch_detail::PendingCollective> pending);

  bool poll() const;
  // Puts the token into the queue once poll() is true: at once, if it already is.
  void notify(const std::shared_ptr<CompletionQueue>& queue, uint64_t token) const;
  // The results, in the order of the call.
  std::vector<at::Tensor> wait() const;
  std::vector<at::Tensor> wait(std::chrono::nanoseconds timeout) const;

 private:
  std::shared_ptr<torch_detail::PendingCollective> pending_;
};

struct AllreduceOptions {
  // What the tensor is called on all ranks. Empty: "allreduce.noname.N", counted in the order of
  // the calls, which must then be the same on all ranks.
  std::string name = {};
  // Average of integers: the sum divided by the number of ranks, rounded toward zero. No Average of
  // bool. Sum and Max of bool are "or", Product and Min are "and". BitAnd, BitOr and BitXor:
  // integers and bool. 16-bit floating types are summed in float32 and rounded once. Complex: Sum
  // and Average. Adasum: floating types; 16-bit ones are rounded each time two ranks are combined;
  // see ops/adasum/adasum_kernels.h.
  ReduceOp op = ReduceOp::Average;
  ProcessSet process_set = {};
  // result = postscale * op(prescale * x); floating types only.
  double prescale = 1.0;
  double postscale = 1.0;
  // float32 only. Float16, BFloat16: what is sent, and the result, are rounded to 16 bits, sums are
  // made in float32 (Adasum's in the 16 bits). Int8: Sum and Average of more than 4 KiB, and only
  // between hosts.
  Compression compression = Compression::None;
};

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options = {});
Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options = {});
Handle allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options = {});

struct BroadcastOptions {
  std::string name = {};  // empty: "broadcast.noname.N"
  int root = 0;           // the rank (of the world) whose values all ranks get
  ProcessSet process_set = {};
};

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options = {});
at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options = {});
Handle broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options = {});
Handle broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options = {});

struct AllgatherOptions {
  std::string name = {};  // empty: "allgather.noname.N"
  ProcessSet process_set = {};
  // Where the result goes; undefined: a new tensor. Row-major, of the shape of the result; the call
  // returns it. It may share memory with the input, which is copied first. Not all ranks need to
  // give one; where the rows do not fit, the call fails on that rank alone.
  at::Tensor output = {};
};

// The tensors of all ranks one after the other along the first dimension, in the order of ranks:
// [n0 + n1 + ..., d1, ...] from [n_rank, d1, ...]. The first dimension may differ from rank to rank
// (0 too), the others may not. Scalars become rows: N ranks give a tensor of shape [N].
at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options = {});
Handle allgather_async(const at::Tensor& tensor, const AllgatherOptions& options = {});

struct ReducescatterOptions {
  std::string name = {};            // empty: "reducescatter.noname.N"
  ReduceOp op = ReduceOp::Average;  // prescale, postscale: as for allreduce
  ProcessSet process_set = {};
  double prescale = 1.0;
  double postscale = 1.0;
  // Rows for each rank of the set, the same on all. Empty: as even as can be, the first ranks get
  // one more.
  std::vector<int64_t> splits = {};
  at::Tensor output = {};                       // as for allgather
  Compression compression = Compression::None;  // as for allreduce, but not Int8
};

// The rows of the reduced tensor that are this rank's: [n_rank, d1, ...] from [n0 + n1 + ..., d1,
// ...], the shape being the same on all ranks.
at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options = {});
Handle reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options = {});

struct ReduceOptions {
  std::string name = {};  // empty: "reduce.noname.N"
  int root = 0;           // a rank of the world
  ProcessSet process_set = {};
  ReduceOp op = ReduceOp::Average;  // prescale, postscale: as for allreduce
  double prescale = 1.0;
  double postscale = 1.0;
};

// As allreduce on the root; other ranks get an empty tensor: [0]. In place: other ranks' tensors
// stay unchanged and are returned, and wait() writes the root's.
at::Tensor reduce(const at::Tensor& tensor, const ReduceOptions& options = {});
at::Tensor reduce_(const at::Tensor& tensor, const ReduceOptions& options = {});
Handle reduce_async(const at::Tensor& tensor, const ReduceOptions& options = {});
Handle reduce_async_(const at::Tensor& tensor, const ReduceOptions& options = {});

struct AlltoallOptions {
  std::string name = {};  // empty: "alltoall.noname.N"
  ProcessSet process_set = {};
  // Rows that each rank of the set gets from this one. Empty: all get the same, and the first
  // dimension must be divisible.
  std::vector<int64_t> splits = {};
  at::Tensor output = {};  // as for allgather
};

struct AlltoallResult {
  at::Tensor tensor;
  std::vector<int64_t> received_splits;  // rows from each rank of the set
};

// Cuts the tensor into rows for every rank, in the order of ranks. Returns the rows that all ranks
// cut for this one, in the order of ranks.
AlltoallResult alltoall(const at::Tensor& tensor, const AlltoallOptions& options = {});
Handle alltoall_async(const at::Tensor& tensor, const AlltoallOptions& options = {});

struct GatherOptions {
  std::string name = {};  // empty: "gather.noname.N"
  int root = 0;           // a rank of the world
  ProcessSet process_set = {};
  at::Tensor output = {};  // as for allgather
};

// As allgather on the root; the others get no rows: [0, d1, ...].
at::Tensor gather(const at::Tensor& tensor, const GatherOptions& options = {});
Handle gather_async(const at::Tensor& tensor, const GatherOptions& options = {});

struct ScatterOptions {
  std::string name = {};  // empty: "scatter.noname.N"
  int root = 0;           // a rank of the world
  ProcessSet process_set = {};
  // On the root: rows for each rank of the set. Empty: as even as can be, the first get one more.
  std::vector<int64_t> splits = {};
  at::Tensor output = {};  // as for allgather
};

// This rank's rows of the root's tensor. On other ranks the tensor gives dtype and row shape only:
// its rows are not read, and there may be none: [0, d1, ...].
at::Tensor scatter(const at::Tensor& tensor, const ScatterOptions& options = {});
Handle scatter_async(const at::Tensor& tensor, const ScatterOptions& options = {});

}  // namespace horon
