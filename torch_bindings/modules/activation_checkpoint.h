// Activation checkpointing: a part of the model is computed a second time in backward, instead of
// keeping in memory what its backward needs.
//
//   at::Tensor y = horon::checkpoint(block, x);                    // a module, or any function
//   auto [q, k] = horon::checkpoint(project, x, mask);             // of tensors, giving tensors
//
// Until backward only the inputs are kept. Backward runs the function again, and then backward
// through what that has recorded. Results and gradients are those of the plain call `block(x)`,
// bit for bit on the CPU, since the second run begins with the same random numbers (those of the
// CPU and of the devices that the inputs are on; the program's own sequence goes on as if there had
// been no second run) and the same autocast settings. Weights that autocast rounds are rounded
// anew in each run, as autocast's cache does not know which of them were recorded. So the gradients
// of a weight that is used several times add up in its own type, and not in 16 bits as with the
// cache, which hands out one rounded weight: the bits differ from those of the plain call, and are
// more exact.
//
// - Gradients reach the inputs that require grad, and all parameters that the function uses,
//   whether an input requires grad or not. Parameters may be used in several parts and elsewhere.
//   A DistributedOptimizer reduces them as ever, also when all of the model is recomputed.
// - Calls may be nested. Under NoGradGuard the function is simply called.
// - Functions give a tensor, a std::vector or a std::tuple of tensors, of any dtype.
// - Whatever else the function writes, it writes twice. SyncBatchNorm leaves its running statistics
//   alone the second time; those of LibTorch's BatchNorm are named in
//   ActivationCheckpointOptions::buffers.
// - backward() throws an exception of the second run as it is. If the function calls collectives,
//   all ranks must run backward alike.
//
// Refused, with Error(InvalidArgument): autograd::grad() and backward(inputs) through a part, as
// the second run would add to the gradients of all its parameters; create_graph, for want of
// second derivatives; functions that write to their inputs, that give other outputs the second
// time, or that use a tensor with a history which is not among their inputs. Writing to inputs is
// seen at once, the last two only in backward; and the last one only where backward runs on the
// thread that has recorded that history, so not on a GPU, which has a thread of its own for it.
//
// The function is copied, called by the thread that runs backward, and released with the graph.
#pragma once

#include <concepts>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace horon {

struct ActivationCheckpointOptions {
  // What the function changes beside its results, and must not change twice: the buffers of a
  // BatchNorm, say (`block->buffers()`). The second run leaves them as it has found them.
  std::vector<at::Tensor> buffers = {};
};

namespace torch_detail {

using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

std::vector<at::Tensor> run_checkpointed(CheckpointedFunction function,
                                         const std::vector<at::Tensor>& inputs,
                                         const ActivationCheckpointOptions& options);

// Modules (holders and shared pointers) are called by their forward(): for a Sequential, whose
// forward() is a template, the holder's own call operator gives nothing.
template <class Function>
auto call_checkpointed(Function& function, const auto&... inputs) {
  if constexpr (requires { function->forward(inputs...); }) {
    return function->forward(inputs...);
  } else {
    return function(inputs...);
  }
}

// Converts the result of a function to a list, and back.
template <class Result>
struct CheckpointResult;
template <>
struct CheckpointResult<at::Tensor> {
  static std::vector<at::Tensor> list(at::Tensor result) { return {std::move(result)}; }
  static at::Tensor from(const std::vector<at::Tensor>& list) { return list.front(); }
};
template <>
struct CheckpointResult<std::vector<at::Tensor>> {
  static std::vector<at::Tensor> list(std::vector<at::Tensor> result) { return result; }
  static std::vector<at::Tensor> from(const std::vector<at::Tensor>& list) { return list; }
};
template <class... Parts>
struct CheckpointResult<std::tuple<Parts...>> {
  static std::vector<at::Tensor> list(const std::tuple<Parts...>& result) {
    return std::apply([](const auto&... parts) { return std::vector<at::Tensor>{parts...}; },
                      result);
  }
  static std::tuple<Parts...> from(const std::vector<at::Tensor>& list) {
    return [&]<size_t... I>(std::index_sequence<I...>) { return std::tuple<Parts...>(list[I]...); }
    (std::index_sequence_for<Parts...>());
  }
};

}  // namespace torch_detail

// The result of `function(inputs...)`. At least one input.
template <class Function, std::convertible_to<at::Tensor>... Inputs>
requires(sizeof...(Inputs) > 0) auto checkpoint(const ActivationCheckpointOptions& options,
                                                Function function, const Inputs&... inputs) {
  using Result = decltype(torch_detail::call_checkpointed(
      function, static_cast<const at::Tensor&>(inputs)...));
  using Results = torch_detail::CheckpointResult<Result>;
  auto on_list = [function = std::move(function)](const std::vector<at::Tensor>& list) mutable {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return Results::list(torch_detail::call_checkpointed(function, list[I]...));
    }
    (std::index_sequence_for<Inputs...>());
  };
  return Results::from(torch_detail::run_checkpointed(std::move(on_list), {inputs...}, options));
}

template <class Function, std::convertible_to<at::Tensor>... Inputs>
requires(sizeof...(Inputs) > 0) auto checkpoint(Function function, const Inputs&... inputs) {
  return checkpoint(ActivationCheckpointOptions(), std::move(function), inputs...);
}

// Is this thread inside the second run of a function? What must happen once in a step (counting,
// running statistics) is left out then.
bool recomputing();

}  // namespace horon
