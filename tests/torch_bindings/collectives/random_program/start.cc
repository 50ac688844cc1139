#include <ATen/ATen.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/collectives/random_program/model.h"
#include "horon/tests/torch_bindings/collectives/random_program/runner.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/grouped_collectives.h"

namespace horon::random_program {
namespace {

// The same values, not lying row by row.
at::Tensor strided(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return tensor;
  if (tensor.dim() > 1) return tensor.transpose(0, 1).contiguous().transpose(0, 1);
  const at::Tensor wide = at::zeros({2 * tensor.size(0)}, tensor.options());
  const at::Tensor every_other = wide.slice(0, 0, wide.size(0), 2);
  every_other.copy_(tensor);
  return every_other;
}

// Another type that is valid for the call's op.
at::ScalarType other_type(const Call& call) {
  if (is_bitwise(call.op)) return call.dtype == at::kInt ? at::kLong : at::kInt;
  if (call.dtype != at::kFloat) return at::kFloat;
  return call.op == ReduceOp::Adasum ? at::kDouble : at::kInt;
}

at::Tensor wrong(const Call& call, const at::Tensor& tensor) {
  switch (call.fault) {
    case Fault::Shape: {
      std::vector<int64_t> shape = tensor.sizes().vec();
      shape.insert(shape.end(), {3, 2});
      return at::zeros(shape, tensor.options());
    }
    case Fault::Dtype:
      return tensor.to(other_type(call));
    case Fault::Undefined:
      return {};
    default:
      return tensor;
  }
}

std::vector<at::Tensor> inputs(const Call& call, bool guilty) {
  std::vector<at::Tensor> tensors;
  for (size_t part = 0; part < call.shapes.size(); ++part) {
    const at::Tensor in = input(call, part, rank());
    tensors.push_back(call.strided ? strided(in) : in);
    if (guilty) tensors.back() = wrong(call, tensors.back());
  }
  return tensors;
}

ReduceOp other_op(const Call& call) {
  if (call.op != ReduceOp::Sum) return ReduceOp::Sum;
  return at::isComplexType(call.dtype) ? ReduceOp::Average : ReduceOp::Max;
}

Running from(const Call& call, const std::vector<at::Tensor>& given, const Handle& handle) {
  Running running{&call, given, [handle] { return std::vector<at::Tensor>{handle.wait()}; }, {}};
  if (call.kind == CollectiveKind::Allgather || call.kind == CollectiveKind::Alltoall) {
    running.received = [handle] { return handle.received_splits(); };
  }
  return running;
}

Running from(const Call& call, const std::vector<at::Tensor>& given, const GroupHandle& handle) {
  return {&call, given, [handle] { return handle.wait(); }, {}};
}

// One call, for a tensor or for a group.
#define START(name, options)                                                \
  (call.grouped ? from(call, given, grouped_##name##_async(given, options)) \
                : from(call, given, name##_async(given[0], options)))
#define START_IN_PLACE(name, options)                                        \
  (call.grouped ? from(call, given, grouped_##name##_async_(given, options)) \
                : from(call, given, name##_async_(given[0], options)))

}  // namespace

Running start(const Call& call, const ProcessSet& set) {
  const bool guilty = call.fault != Fault::None && rank() == call.guilty;
  std::vector<at::Tensor> given = inputs(call, guilty);
  CollectiveKind kind = call.kind;
  if (guilty && call.fault == Fault::Kind) {
    kind = kind == CollectiveKind::Broadcast ? CollectiveKind::Allgather  //
                                             : CollectiveKind::Broadcast;
  }
  const ReduceOp op = guilty && call.fault == Fault::Op ? other_op(call) : call.op;
  int root = call.root;
  if (guilty && call.fault == Fault::Root) {
    root = call.ranks[(call.member(root) + 1) % call.ranks.size()];
  }
  const std::vector<int64_t> none;
  switch (kind) {
    case CollectiveKind::Allreduce: {
      const AllreduceOptions options{.name = call.name,
                                     .op = op,
                                     .process_set = set,
                                     .prescale = call.prescale,
                                     .postscale = call.postscale};
      return call.in_place ? START_IN_PLACE(allreduce, options) : START(allreduce, options);
    }
    case CollectiveKind::Broadcast: {
      const BroadcastOptions options{.name = call.name, .root = root, .process_set = set};
      return call.in_place ? START_IN_PLACE(broadcast, options) : START(broadcast, options);
    }
    case CollectiveKind::Allgather: {
      const AllgatherOptions options{.name = call.name, .process_set = set};
      return START(allgather, options);
    }
    case CollectiveKind::Reducescatter: {
      const ReducescatterOptions options{.name = call.name,
                                         .op = op,
                                         .process_set = set,
                                         .prescale = call.prescale,
                                         .postscale = call.postscale,
                                         .splits = call.default_splits ? none : call.splits};
      return START(reducescatter, options);
    }
    case CollectiveKind::Alltoall: {
      const auto& splits = call.matrix[call.member(rank())];
      const AlltoallOptions options{
          .name = call.name, .process_set = set, .splits = call.default_splits ? none : splits};
      return START(alltoall, options);
    }
    case CollectiveKind::Gather: {
      const GatherOptions options{.name = call.name, .root = root, .process_set = set};
      return START(gather, options);
    }
    default: {
      const bool divides = rank() == root && root == call.root && !call.default_splits;
      const ScatterOptions options{.name = call.name,
                                   .root = root,
                                   .process_set = set,
                                   .splits = divides ? call.splits : none};
      return START(scatter, options);
    }
  }
}

}  // namespace horon::random_program
