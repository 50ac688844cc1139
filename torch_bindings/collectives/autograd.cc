#include "horon/torch_bindings/collectives/autograd.h"

#include <functional>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::autograd {
namespace {

using core::concat;
using torch_detail::NameTurn;
using Map = std::function<at::Tensor(const at::Tensor&)>;

// What a linear map gave, and the map that takes gradients back. That one is differentiable itself,
// and holds no tensors, only what it takes to make the call.
struct Outcome {
  at::Tensor tensor;
  Map adjoint;
};
using Forward = std::function<Outcome(const at::Tensor&)>;

struct Adjoint : torch::CustomClassHolder {
  explicit Adjoint(Map given) : map(std::move(given)) {}
  Map map;
};

class Linear : public torch::autograd::Function<Linear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& tensor,
                            const at::Tensor& /*anchor*/, const Forward& forward) {
    Outcome outcome = forward(tensor);
    context->saved_data["adjoint"] =
        c10::IValue::make_capsule(c10::make_intrusive<Adjoint>(std::move(outcome.adjoint)));
    return outcome.tensor;
  }

  // A gradient that is undefined comes as zeros: every rank takes part.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto held = context->saved_data["adjoint"].toCapsule();
    const auto& adjoint = static_cast<const Adjoint&>(*held);
    return {adjoint.map(gradients.front()), at::Tensor(), at::Tensor()};
  }
};

bool is_differentiable(const at::Tensor& tensor) {
  return at::GradMode::is_enabled() && tensor.defined() &&
         !tensor.is_nested() &&  // which the plain form refuses
         (tensor.is_floating_point() || tensor.is_complex()) &&
         !torch_detail::is_moved_only(tensor);
}

// The result requires grad on every rank, because the anchor does: a rank whose own tensor needs no
// gradient must still take part in backward, which is collective.
at::Tensor run(const at::Tensor& tensor, const Forward& forward) {
  if (!is_differentiable(tensor)) return forward(tensor).tensor;
  const at::Tensor anchor = at::empty({0}).requires_grad_(true);
  return Linear::apply(tensor, anchor, forward);
}

template <class Options>
Options with_fixed_name(const Options& options, std::string_view kind) {
  Options fixed = options;
  fixed.name = torch_detail::given_or_counted(options.name, kind, options.process_set.id());
  if constexpr (requires { options.output; }) {
    // `output` would get this step's graph, and keep it when a later call writes there.
    if (options.output.defined()) {
      torch_detail::refuse_call(fixed.name, options.process_set,
                                concat("tensor \"", fixed.name,
                                       "\": a result with a gradient is "
                                       "always a new tensor; leave out `output`"));
    }
  }
  return fixed;
}

template <class Options>
std::string backward_name(const Options& options) {
  return options.name + ".backward";
}

// What a rank does with a gradient before the collective `back`. If it throws (no memory, say), the
// other ranks, which wait for this one there, learn of it.
template <class Options, class Work>
at::Tensor prepared(const Options& back, const Work& work) {
  try {
    return work();
  } catch (...) {
    const NameTurn turn(back.name, back.process_set.id());
    torch_detail::refuse_calls({back.name}, back.process_set, core::current_error());
  }
}

template <class Options>
at::Tensor dense(const at::Tensor& gradient, const Options& back) {
  if (gradient.layout() == at::kStrided) return gradient;
  return prepared(back, [&] { return gradient.to_dense(); });
}

template <class Options>
void check_linear(const at::Tensor& tensor, const Options& options, std::string_view plain_form) {
  if (options.op == ReduceOp::Sum || options.op == ReduceOp::Average) return;
  if (!is_differentiable(tensor)) return;
  torch_detail::refuse_call(options.name, options.process_set,
                            concat("tensor \"", options.name, "\": ", to_string(options.op),
                                   " has no derivative here; use Sum or Average, or horon::",
                                   plain_form, "() where no gradient is needed"));
}

// The sum of all ranks on the root, zeros elsewhere; the adjoint of broadcast, and the other way
// round.
at::Tensor sum_on_root(const at::Tensor& tensor, const BroadcastOptions& options) {
  return run(tensor, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    at::Tensor sum = horon::allreduce(
        input, {.name = options.name, .op = ReduceOp::Sum, .process_set = options.process_set});
    if (rank() != options.root) sum = at::zeros_like(sum);
    BroadcastOptions back = options;
    back.name = backward_name(options);
    return {sum, [back](const at::Tensor& gradient) {
              return autograd::broadcast(dense(gradient, back), back);
            }};
  });
}

}  // namespace

at::Tensor allreduce(const at::Tensor& tensor, const AllreduceOptions& given) {
  const AllreduceOptions options = with_fixed_name(given, "autograd.allreduce");
  check_linear(tensor, options, "allreduce");
  return run(tensor, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    AllreduceOptions back = options;
    back.name = backward_name(options);
    return {horon::allreduce(input, options), [back](const at::Tensor& gradient) {
              return autograd::allreduce(dense(gradient, back), back);
            }};
  });
}

at::Tensor broadcast(const at::Tensor& tensor, const BroadcastOptions& given) {
  const BroadcastOptions options = with_fixed_name(given, "autograd.broadcast");
  return run(tensor, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    BroadcastOptions back = options;
    back.name = backward_name(options);
    return {horon::broadcast(input, options), [back](const at::Tensor& gradient) {
              return sum_on_root(dense(gradient, back), back);
            }};
  });
}

at::Tensor allgather(const at::Tensor& tensor, const AllgatherOptions& given) {
  const AllgatherOptions options = with_fixed_name(given, "autograd.allgather");
  return run(tensor, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    const Handle handle = horon::allgather_async(input, options);
    const ReducescatterOptions back{.name = backward_name(options),
                                    .op = ReduceOp::Sum,
                                    .process_set = options.process_set,
                                    .splits = handle.received_splits()};
    return {handle.wait(), [back, shape = input.sizes().vec()](const at::Tensor& gradient) {
              const at::Tensor rows = autograd::reducescatter(dense(gradient, back), back);
              return rows.view(shape);  // a scalar was a row
            }};
  });
}

namespace {

at::Tensor allgather_compressed(const at::Tensor& tensor, Compression compression,
                                const AllgatherOptions& options) {
  if (compression == Compression::None) return autograd::allgather(tensor, options);
  const at::Tensor narrow = prepared(options, [&] {
    const at::Tensor real = tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
    return real.to(torch_detail::scalar_type_of(core::narrow_type(compression)));
  });
  const at::Tensor all = autograd::allgather(narrow, options).to(at::kFloat);
  return tensor.is_complex() ? at::view_as_complex(all) : all;
}

}  // namespace

at::Tensor reducescatter(const at::Tensor& tensor, const ReducescatterOptions& given) {
  const ReducescatterOptions options = with_fixed_name(given, "autograd.reducescatter");
  check_linear(tensor, options, "reducescatter");
  return run(tensor, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    const int averaged = options.op == ReduceOp::Average ? options.process_set.size() : 1;
    const double factor = options.prescale * options.postscale / averaged;
    const AllgatherOptions back{.name = backward_name(options), .process_set = options.process_set};
    return {horon::reducescatter(input, options),
            [back, factor, compression = options.compression](const at::Tensor& gradient) {
              const at::Tensor all = dense(gradient, back);
              const at::Tensor scaled =
                  factor == 1.0 ? all : prepared(back, [&] { return all.mul(factor); });
              return allgather_compressed(scaled, compression, back);
            }};
  });
}

AlltoallResult alltoall(const at::Tensor& tensor, const AlltoallOptions& given) {
  const AlltoallOptions options = with_fixed_name(given, "autograd.alltoall");
  AlltoallResult result;
  result.tensor = run(tensor, [options, &result](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    AlltoallResult moved = horon::alltoall(input, options);
    result.received_splits = moved.received_splits;
    const AlltoallOptions back{.name = backward_name(options),
                               .process_set = options.process_set,
                               .splits = std::move(moved.received_splits)};
    return {moved.tensor, [back](const at::Tensor& gradient) {
              return autograd::alltoall(dense(gradient, back), back).tensor;
            }};
  });
  return result;
}

at::Tensor gather(const at::Tensor& tensor, const GatherOptions& given) {
  const GatherOptions options = with_fixed_name(given, "autograd.gather");
  return run(tensor, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    const Handle handle = horon::gather_async(input, options);
    ScatterOptions back{
        .name = backward_name(options), .root = options.root, .process_set = options.process_set};
    if (rank() == options.root) back.splits = handle.received_splits();
    return {handle.wait(), [back, shape = input.sizes().vec()](const at::Tensor& gradient) {
              const at::Tensor rows = autograd::scatter(dense(gradient, back), back);
              return rows.view(shape);  // a scalar was a row
            }};
  });
}

at::Tensor scatter(const at::Tensor& tensor, const ScatterOptions& given) {
  const ScatterOptions options = with_fixed_name(given, "autograd.scatter");
  // Rows that are not read get zeros as their gradient: from this slice.
  const bool has_rows = tensor.defined() && tensor.layout() == at::kStrided &&
                        !tensor.is_nested() && tensor.dim() > 0;
  const bool reads_rows = is_initialized() && rank() == options.root;
  const at::Tensor used = has_rows && !reads_rows ? tensor.slice(0, 0, 0) : tensor;
  return run(used, [options](const at::Tensor& input) -> Outcome {
    const NameTurn turn(options.name, options.process_set.id());
    const GatherOptions back{
        .name = backward_name(options), .root = options.root, .process_set = options.process_set};
    return {horon::scatter(input, options), [back](const at::Tensor& gradient) {
              return autograd::gather(dense(gradient, back), back);
            }};
  });
}

}  // namespace horon::autograd
