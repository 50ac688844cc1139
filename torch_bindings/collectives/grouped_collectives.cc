#include "horon/torch_bindings/collectives/grouped_collectives.h"

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon {
namespace {

using torch_detail::Into;
using torch_detail::PendingCollective;
using Pending = std::shared_ptr<PendingCollective>;

template <class Options>
Pending make(CollectiveKind kind, std::string_view kind_name, const Options& options,
             const Tensors& tensors) {
  auto pending =
      std::make_shared<PendingCollective>(kind, kind_name, options.name, options.process_set, true);
  if (tensors.empty()) {
    pending->refuse(Error(ErrorCode::InvalidArgument,
                          "tensor \"" + pending->name + "\": the group has no tensors"));
  }
  if constexpr (requires { options.output; }) {
    if (options.output.defined()) {
      pending->refuse(Error(ErrorCode::InvalidArgument,
                            "tensor \"" + pending->name +
                                "\": `output` takes the result of one "
                                "tensor, but a group returns new tensors; leave it out"));
    }
  }
  pending->reserve(tensors.size());
  return pending;
}

GroupHandle submit(const Pending& pending) {
  pending->submit(pending);
  return GroupHandle(pending);
}

// Valid as long as `pending` is.
const Tensors& run(const Pending& pending) {
  pending->run(pending);
  return pending->results();
}

Pending pending_allreduce(const Tensors& tensors, const AllreduceOptions& options, Into into) {
  const Pending pending = make(CollectiveKind::Allreduce, "grouped_allreduce", options, tensors);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->spec.compression = options.compression;
  for (const at::Tensor& tensor : tensors) pending->add(tensor, into);
  return pending;
}

Pending pending_broadcast(const Tensors& tensors, const BroadcastOptions& options, Into into) {
  const Pending pending = make(CollectiveKind::Broadcast, "grouped_broadcast", options, tensors);
  pending->set_root(options.root);
  for (const at::Tensor& tensor : tensors) pending->add(tensor, into);
  return pending;
}

Pending pending_allgather(const Tensors& tensors, const AllgatherOptions& options) {
  const Pending pending = make(CollectiveKind::Allgather, "grouped_allgather", options, tensors);
  for (const at::Tensor& tensor : tensors) pending->add_rows(tensor);
  return pending;
}

Pending pending_reducescatter(const Tensors& tensors, const ReducescatterOptions& options) {
  const Pending pending =
      make(CollectiveKind::Reducescatter, "grouped_reducescatter", options, tensors);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->spec.splits = options.splits;
  pending->row_compression = options.compression;
  for (const at::Tensor& tensor : tensors) pending->add_rows(tensor);
  return pending;
}

Pending pending_alltoall(const Tensors& tensors, const AlltoallOptions& options) {
  const Pending pending = make(CollectiveKind::Alltoall, "grouped_alltoall", options, tensors);
  for (const at::Tensor& tensor : tensors) {
    pending->add_rows(tensor,
                      options.splits.empty() ? pending->equal_splits(tensor) : options.splits);
  }
  return pending;
}

Pending pending_gather(const Tensors& tensors, const GatherOptions& options) {
  const Pending pending = make(CollectiveKind::Gather, "grouped_gather", options, tensors);
  pending->set_root(options.root);
  for (const at::Tensor& tensor : tensors) pending->add_rows(tensor);
  return pending;
}

Pending pending_scatter(const Tensors& tensors, const ScatterOptions& options) {
  const Pending pending = make(CollectiveKind::Scatter, "grouped_scatter", options, tensors);
  pending->set_root(options.root);
  for (const at::Tensor& tensor : tensors) {
    if (options.root == rank()) {
      pending->add_rows(tensor,
                        options.splits.empty() ? pending->even_splits(tensor) : options.splits);
    } else {
      pending->add_rows(tensor);
    }
  }
  return pending;
}

}  // namespace

Tensors grouped_allreduce(const Tensors& tensors, const AllreduceOptions& options) {
  return run(pending_allreduce(tensors, options, Into::New));
}

void grouped_allreduce_(const Tensors& tensors, const AllreduceOptions& options) {
  (void)run(pending_allreduce(tensors, options, Into::Same));
}

GroupHandle grouped_allreduce_async(const Tensors& tensors, const AllreduceOptions& options) {
  return submit(pending_allreduce(tensors, options, Into::New));
}

GroupHandle grouped_allreduce_async_(const Tensors& tensors, const AllreduceOptions& options) {
  return submit(pending_allreduce(tensors, options, Into::Same));
}

Tensors grouped_broadcast(const Tensors& tensors, const BroadcastOptions& options) {
  return run(pending_broadcast(tensors, options, Into::New));
}

void grouped_broadcast_(const Tensors& tensors, const BroadcastOptions& options) {
  (void)run(pending_broadcast(tensors, options, Into::Same));
}

GroupHandle grouped_broadcast_async(const Tensors& tensors, const BroadcastOptions& options) {
  return submit(pending_broadcast(tensors, options, Into::New));
}

GroupHandle grouped_broadcast_async_(const Tensors& tensors, const BroadcastOptions& options) {
  return submit(pending_broadcast(tensors, options, Into::Same));
}

Tensors grouped_allgather(const Tensors& tensors, const AllgatherOptions& options) {
  return run(pending_allgather(tensors, options));
}

GroupHandle grouped_allgather_async(const Tensors& tensors, const AllgatherOptions& options) {
  return submit(pending_allgather(tensors, options));
}

Tensors grouped_reducescatter(const Tensors& tensors, const ReducescatterOptions& options) {
  return run(pending_reducescatter(tensors, options));
}

GroupHandle grouped_reducescatter_async(const Tensors& tensors,
                                        const ReducescatterOptions& options) {
  return submit(pending_reducescatter(tensors, options));
}

Tensors grouped_alltoall(const Tensors& tensors, const AlltoallOptions& options) {
  return run(pending_alltoall(tensors, options));
}

GroupHandle grouped_alltoall_async(const Tensors& tensors, const AlltoallOptions& options) {
  return submit(pending_alltoall(tensors, options));
}

Tensors grouped_gather(const Tensors& tensors, const GatherOptions& options) {
  return run(pending_gather(tensors, options));
}

GroupHandle grouped_gather_async(const Tensors& tensors, const GatherOptions& options) {
  return submit(pending_gather(tensors, options));
}

Tensors grouped_scatter(const Tensors& tensors, const ScatterOptions& options) {
  return run(pending_scatter(tensors, options));
}

GroupHandle grouped_scatter_async(const Tensors& tensors, const ScatterOptions& options) {
  return submit(pending_scatter(tensors, options));
}

}  // namespace horon
