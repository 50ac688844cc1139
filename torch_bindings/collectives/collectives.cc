#include "horon/torch_bindings/collectives/collectives.h"

#include <utility>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/pending_collective.h"

namespace horon {
namespace {

using torch_detail::PendingCollective;
using torch_detail::Place;
using Pending = std::shared_ptr<PendingCollective>;

Pending checked(const Pending& pending) {
  if (!pending) throw Error(ErrorCode::InvalidArgument, "this handle belongs to no collective");
  return pending;
}

Handle submit(const Pending& pending) {
  pending->submit(pending);
  return Handle(pending);
}

Handle start_allreduce(const at::Tensor& tensor, const AllreduceOptions& options, Place place) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Allreduce, "allreduce",
                                                           options.name, options.process_set);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->spec.compression = options.compression;
  pending->add(tensor, place);
  return submit(pending);
}

Handle start_broadcast(const at::Tensor& tensor, const BroadcastOptions& options, Place place) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Broadcast, "broadcast",
                                                           options.name, options.process_set);
  pending->set_root(options.root);
  pending->add(tensor, place);
  return submit(pending);
}

}  // namespace

Handle::Handle(Pending pending) : pending_(std::move(pending)) {}

bool Handle::poll() const { return checked(pending_)->state().finished(); }

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

std::vector<at::Tensor> GroupHandle::wait() const {
  checked(pending_)->state().wait(std::nullopt);
  return pending_->results();
}

std::vector<at::Tensor> GroupHandle::wait(std::chrono::nanoseconds timeout) const {
  checked(pending_)->wait(timeout);
  return wait();
}

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& options) {
  return allreduce_async(tensor, options).wait();
}

at::Tensor allreduce_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return allreduce_async_(tensor, options).wait();
}

Handle allreduce_async(const at::Tensor& tensor, const AllreduceOptions& options) {
  return start_allreduce(tensor, options, Place::New);
}

Handle allreduce_async_(const at::Tensor& tensor, const AllreduceOptions& options) {
  return start_allreduce(tensor, options, Place::Same);
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& options) {
  return broadcast_async(tensor, options).wait();
}

at::Tensor broadcast_(const at::Tensor& tensor, const BroadcastOptions& options) {
  return broadcast_async_(tensor, options).wait();
}

Handle broadcast_async(const at::Tensor& tensor, const BroadcastOptions& options) {
  return start_broadcast(tensor, options, Place::New);
}

Handle broadcast_async_(const at::Tensor& tensor, const BroadcastOptions& options) {
  return start_broadcast(tensor, options, Place::Same);
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& options) {
  return allgather_async(tensor, options).wait();
}

Handle allgather_async(const at::Tensor& tensor, const AllgatherOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Allgather, "allgather",
                                                           options.name, options.process_set);
  pending->add_rows(tensor);
  return submit(pending);
}

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& options) {
  return reducescatter_async(tensor, options).wait();
}

Handle reducescatter_async(const at::Tensor& tensor, const ReducescatterOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(
      CollectiveKind::Reducescatter, "reducescatter", options.name, options.process_set);
  pending->spec.reduce_op = options.op;
  pending->spec.prescale = options.prescale;
  pending->spec.postscale = options.postscale;
  pending->spec.splits = options.splits;
  pending->add_rows(tensor);
  return submit(pending);
}

AlltoallResult alltoall(const at::Tensor& tensor, const AlltoallOptions& options) {
  const Handle handle = alltoall_async(tensor, options);
  return {handle.wait(), handle.received_splits()};
}

Handle alltoall_async(const at::Tensor& tensor, const AlltoallOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Alltoall, "alltoall",
                                                           options.name, options.process_set);
  pending->add_rows(tensor,
                    options.splits.empty() ? pending->equal_splits(tensor) : options.splits);
  return submit(pending);
}

at::Tensor gather(const at::Tensor& tensor, const GatherOptions& options) {
  return gather_async(tensor, options).wait();
}

Handle gather_async(const at::Tensor& tensor, const GatherOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Gather, "gather",
                                                           options.name, options.process_set);
  pending->set_root(options.root);
  pending->add_rows(tensor);
  return submit(pending);
}

at::Tensor scatter(const at::Tensor& tensor, const ScatterOptions& options) {
  return scatter_async(tensor, options).wait();
}

Handle scatter_async(const at::Tensor& tensor, const ScatterOptions& options) {
  const auto pending = std::make_shared<PendingCollective>(CollectiveKind::Scatter, "scatter",
                                                           options.name, options.process_set);
  pending->set_root(options.root);
  if (options.root != rank()) {
    pending->add_rows(tensor.defined() && tensor.dim() > 0 ? tensor.slice(0, 0, 0) : tensor);
    return submit(pending);
  }
  pending->add_rows(tensor, options.splits.empty() ? pending->even_splits(tensor) : options.splits);
  return submit(pending);
}

}  // namespace horon
