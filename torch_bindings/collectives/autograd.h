// Collectives with derivatives: what collectives.h has, for use inside a model or a loss.
//
//   at::Tensor all = horon::autograd::allgather(embeddings);      // contrastive losses
//   contrastive_loss(embeddings.mm(all.t())).backward();
//
// Same options but `output`, same results, same errors as the forms of collectives.h that wait. The
// results have history, and backward() is the adjoint collective, also for the derivative of a
// derivative (create_graph):
//
//   allreduce       the same allreduce (Sum or Average, same scales) of the gradients
//   broadcast       the sum of the gradients on the root, zeros elsewhere
//   allgather       reducescatter (Sum): each rank gets the sum for its own rows, however many
//   reducescatter   allgather; for Average divided by the number of ranks
//   alltoall        alltoall, each row back to where it came from
//   gather          scatter; scatter: gather
//
// A gradient is the derivative of the sum of all ranks' losses with respect to this rank's input.
// If the loss is to be the mean over all ranks, divide it by their number, on each rank.
//
// Backward is collective too:
//  - Every rank of the process set must get there: its loss must depend on the result, if only by
//    `+ 0 * y.sum()`. Where the gradient that comes back is undefined, zeros take part. Results of
//    floating and complex types therefore require grad on every rank whenever gradients are
//    recorded, even if the given tensor does not.
//  - Backward adds up what comes from the ranks' losses as they are. A reducer's set_weight() comes
//    later and can't weight them: multiply the losses instead.
//  - Each call waits, in forward and in backward. So all ranks make the calls of one thread in the
//    same order; autograd then goes back through them in the opposite order on all of them.
//
// Names: backward runs under the name of the forward with ".backward" behind it (given, or counted
// as "autograd.allgather.noname.N"). A name may be used again at any time: calls of one name wait
// for each other on each rank and meet those of the other ranks in the order of calls. So a forward
// that is recomputed, and two backwards through one graph, also on two threads, don't collide.
//
// Min, Max, Product and Adasum are refused (InvalidArgument): they have no derivative here.
// Compression counts as the identity (straight-through), and the gradients travel compressed as
// well. For integers and bool, and where no gradients are recorded, these are the plain forms, with
// all reductions. Complex gradients follow LibTorch's convention. Sparse gradients are made dense.
// Any thread may call.
#pragma once

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/collectives/collectives.h"

namespace horon::autograd {

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options = {});
// The tensor of ranks other than the root gives the shape, and gets zeros as its gradient.
at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options = {});
at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options = {});
at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options = {});
AlltoallResult alltoall(const at::Tensor& tensor, const AlltoallOptions& options = {});
// Ranks other than the root get no rows, but must go through backward as well: `+ y.sum()`.
at::Tensor gather(const at::Tensor& tensor, const GatherOptions& options = {});
// The tensor of ranks other than the root gets zeros as its gradient.
at::Tensor scatter(const at::Tensor& tensor, const ScatterOptions& options = {});

}  // namespace horon::autograd
