#include "horon/torch_bindings/collectives/collectives.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon {
namespace {

using torch_detail::Into;
using torch_detail::PendingCollective;
using Pending = std::shared_ptr<PendingCollective>;

Pending checked(const Pending& pending) {
  if (!pending)
    throw Error(ErrorCode::InvalidArgument,
                "this handle is empty; use one that an async call returned");
  return pending;
}

Handle submit(const Pending& pending) {
  pending->submit(pending);
  return Handle(pending);
}

at::Tensor run(const Pending& pending) {
  pending->run(pending);
  return pending->results().front();
}

Pending pending_allreduce(const at::Tensor& tensor, const AllreduceOptions& options, Into into) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Allreduce, "allreduce",
                                                           options.name, options.process_set);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->spec.compression = options.compression;
  pending->add(tensor, into);
  return pending;
}

Pending pending_broadcast(const at::Tensor& tensor, const BroadcastOptions& options, Into into) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Broadcast, "broadcast",
                                                           options.name, options.process_set);
  pending->set_root(options.root);
  pending->add(tensor, into);
  return pending;
}

Pending pending_allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Allgather, "allgather",
                                                           options.name, options.process_set);
  pending->add_rows(tensor, {}, options.output);
  return pending;
}

Pending pending_reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(
      CollectiveKind::Reducescatter, "reducescatter", options.name, options.process_set);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->spec.splits = options.splits;
  pending->row_compression = options.compression;
  pending->add_rows(tensor, {}, options.output);
  return pending;
}

Pending pending_reduce(const at::Tensor& tensor, const ReduceOptions& options, Into into) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Reducescatter, "reduce",
                                                           options.name, options.process_set);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->set_root(options.root);
  pending->add_reduced(tensor, into);
  return pending;
}

Pending pending_alltoall(const at::Tensor& tensor, const AlltoallOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Alltoall, "alltoall",
                                                           options.name, options.process_set);
  pending->add_rows(tensor, options.splits.empty() ? pending->equal_splits(tensor) : options.splits,
                    options.output);
  return pending;
}

Pending pending_gather(const at::Tensor& tensor, const GatherOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Gather, "gather",
                                                           options.name, options.process_set);
  pending->set_root(options.root);
  pending->add_rows(tensor, {}, options.output);
  return pending;
}

Pending pending_scatter(const at::Tensor& tensor, const ScatterOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Scatter, "scatter",
                                                           options.name, options.process_set);
  pending->set_root(options.root);
  if (options.root != rank()) {
    pending->add_rows(tensor, {}, options.output);
    return pending;
  }
  pending->add_rows(tensor, options.splits.empty() ? pending->even_splits(tensor) : options.splits,
                    options.output);
  return pending;
}

}  // namespace

Handle::Handle(Pending pending) : pending_(std::move(pending)) {}

bool Handle::poll() const { return checked(pending_)->state().finished(); }

void Handle::notify(const std::shared_ptr<CompletionQueue>& queue, uint64_t token) const {
  checked(pending_)->state().notify(queue, token);
}

at::Tensor Handle::wait() const {
  checked(pending_)->state().wait(std::nullopt);
  return pending_->results().front();
}

at::Tensor Handle::wait(std::chrono::nanoseconds timeout) const {
  checked(pending_)->wait(timeout);
  return wait();
}

std::vector<int64_t> Handle::received_splits() const {
  (void)wait();
  return pending_->received_rows().front();
}

GroupHandle::GroupHandle(Pending pending) : pending_(std::move(pending)) {}

bool GroupHandle::poll() const { return checked(pending_)->state().finished(); }

void GroupHandle::notify(const std::shared_ptr<CompletionQueue>& queue, uint64_t token) const {
  checked(pending_)->state().notify(queue, token);
}

std::vector<at::Tensor> GroupHandle::wait() const {
  checked(pending_)->state().wait(std::nullopt);
  return pending_->results();
}

std::vector<at::Tensor> GroupHandle::wait(std::chrono::nanoseconds timeout) const {
  checked(pending_)->wait(timeout);
  return wait();
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return run(pending_allreduce(tensor, options, Into::New));
}

at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return run(pending_allreduce(tensor, options, Into::Same));
}

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return submit(pending_allreduce(tensor, options, Into::New));
}

Handle allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return submit(pending_allreduce(tensor, options, Into::Same));
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  return run(pending_broadcast(tensor, options, Into::New));
}

at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  return run(pending_broadcast(tensor, options, Into::Same));
}

Handle broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options) {
  return submit(pending_broadcast(tensor, options, Into::New));
}

Handle broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options) {
  return submit(pending_broadcast(tensor, options, Into::Same));
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  return run(pending_allgather(tensor, options));
}

Handle allgather_async(const at::Tensor& tensor, const AllgatherOptions& options) {
  return submit(pending_allgather(tensor, options));
}

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  return run(pending_reducescatter(tensor, options));
}

Handle reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options) {
  return submit(pending_reducescatter(tensor, options));
}

at::Tensor reduce(const at::Tensor& tensor, const ReduceOptions& options) {
  return run(pending_reduce(tensor, options, Into::New));
}

at::Tensor reduce_(const at::Tensor& tensor, const ReduceOptions& options) {
  return run(pending_reduce(tensor, options, Into::Same));
}

Handle reduce_async(const at::Tensor& tensor, const ReduceOptions& options) {
  return submit(pending_reduce(tensor, options, Into::New));
}

Handle reduce_async_(const at::Tensor& tensor, const ReduceOptions& options) {
  return submit(pending_reduce(tensor, options, Into::Same));
}

AlltoallResult alltoall(const at::Tensor& tensor, const AlltoallOptions& options) {
  const Pending pending = pending_alltoall(tensor, options);
  at::Tensor rows = run(pending);
  return {std::move(rows), pending->received_rows().front()};
}

Handle alltoall_async(const at::Tensor& tensor, const AlltoallOptions& options) {
  return submit(pending_alltoall(tensor, options));
}

at::Tensor gather(const at::Tensor& tensor, const GatherOptions& options) {
  return run(pending_gather(tensor, options));
}

Handle gather_async(const at::Tensor& tensor, const GatherOptions& options) {
  return submit(pending_gather(tensor, options));
}

at::Tensor scatter(const at::Tensor& tensor, const ScatterOptions& options) {
  return run(pending_scatter(tensor, options));
}

Handle scatter_async(const at::Tensor& tensor, const ScatterOptions& options) {
  return submit(pending_scatter(tensor, options));
}

}  // namespace horon
