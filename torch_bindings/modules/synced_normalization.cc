#include "horon/torch_bindings/modules/synced_normalization.h"

#include <array>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

using core::concat;
namespace graph = ::torch::autograd;

at::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

int64_t values_per_channel(const at::Tensor& input) {
  int64_t values = input.size(0);
  for (int64_t dimension = 2; dimension < input.dim(); ++dimension) {
    values *= input.size(dimension);
  }
  return values;
}

// [channels], reshaped to broadcast over the channels of `input`.
at::Tensor over_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

// Mean and squared deviations of this rank's samples, and their number: one row in float64.
at::Tensor own_row(const at::Tensor& input, int64_t values) {
  const int64_t channels = input.size(1);
  const at::TensorOptions in_double = input.options().dtype(at::kDouble);
  if (values == 0) return at::zeros({1, 2 * channels + 1}, in_double);
  // With these as running statistics, LibTorch computes those of 16-bit values in float32.
  const at::Tensor unused = at::zeros({channels}, in_double.dtype(statistics_type(input)));
  const auto [mean, variance] =
      at::batch_norm_update_stats(input, unused, unused.clone(), /*momentum=*/0);
  const at::Tensor count = at::zeros({1}, in_double).fill_(static_cast<double>(values));
  return at::cat({mean.to(at::kDouble), variance.to(at::kDouble).mul_(values), count}).unsqueeze(0);
}

// The parts are merged as Chan, Golub and LeVeque do: the deviations within each part, and those of
// the parts' means from the common one. Nothing cancels, however large the mean.
BatchStatistics merge_rows(const at::Tensor& rows, int64_t channels, at::ScalarType type) {
  const at::Tensor means = rows.narrow(1, 0, channels);
  const at::Tensor deviations = rows.narrow(1, channels, channels);
  const at::Tensor counts = rows.narrow(1, 2 * channels, 1);
  BatchStatistics merged;
  merged.count = counts.sum();
  const at::Tensor shares = counts / merged.count.clamp_min(1);
  const at::Tensor mean = means.mul(shares).sum(0);
  const at::Tensor squared = deviations.sum(0) + (means - mean).square_().mul_(counts).sum(0);
  merged.mean = mean.to(type);
  merged.variance = squared.div(merged.count.clamp_min(1)).to(type);
  merged.unbiased = squared.div((merged.count - 1).clamp_min(1)).to(type);
  return merged;
}

struct HeldCall : ::torch::CustomClassHolder {
  explicit HeldCall(NormalizationCall given) : call(std::move(given)) {}
  NormalizationCall call;
};

void check_same_call(const at::Tensor& numbers, const NormalizationCall& call) {
  std::map<int64_t, std::vector<int>> ranks_of_number;
  const std::vector<int> ranks = call.process_set.ranks();
  const auto number_of = numbers.accessor<double, 1>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const auto number = static_cast<int64_t>(number_of[i]);
    if (number != 0) ranks_of_number[number].push_back(ranks[static_cast<size_t>(i)]);  // 0: joined
  }
  if (ranks_of_number.size() == 1) return;
  std::string who;
  for (const auto& [number, of_number] : ranks_of_number) {
    who += concat(who.empty() ? "" : ", ", core::name_ranks(of_number), " through call ", number);
  }
  throw Error(
      ErrorCode::Mismatch,
      concat("SyncBatchNorm \"", call.name, "\": the ranks run backward() through different ",
             "calls of the module: ", who, ". Every rank must use the output of each call in its ",
             "loss; add 0 * output.sum() where it is not needed"));
}

at::Tensor wait_for_all(const Handle& handle, const NormalizationCall& call) {
  try {
    return handle.wait(call.backward_timeout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Timeout) throw;
    throw Error(ErrorCode::Timeout,
                concat("SyncBatchNorm \"", call.name, "\": ", error.what(),
                       ". Every rank must run backward() through each call of the module; if the ",
                       "loss of a rank does not depend on the output, add 0 * output.sum()"));
  }
}

// The sums of all ranks. The numbers of the calls travel with them, on the CPU in the same
// collective; from a GPU, which some rank may have, the host could not read them without waiting
// for the device.
at::Tensor sum_over_ranks(const at::Tensor& sums, const NormalizationCall& call) {
  const std::string name = concat(call.name, ".backward");
  const NameTurn turn(name, call.process_set.id());
  at::Tensor numbers = at::zeros({call.process_set.size()}, at::kDouble);
  numbers[call.process_set.rank()] = static_cast<double>(call.number);
  const auto begin = [&](const at::Tensor& tensor, const std::string& as) {
    return allreduce_async(tensor,
                           {.name = as, .op = ReduceOp::Sum, .process_set = call.process_set});
  };
  if (!sums.is_cpu() || ops::runtime().is_mixed(call.process_set.id(), DeviceKind::Cuda)) {
    const Handle all_numbers = begin(numbers, concat(name, ".call"));
    const Handle all_sums = begin(sums, name);
    const at::Tensor calls = wait_for_all(all_numbers, call);
    const at::Tensor all = wait_for_all(all_sums, call);
    check_same_call(calls, call);  // last: whoever catches its error finds both names free
    return all;
  }
  const at::Tensor all = wait_for_all(begin(at::cat({sums, numbers}), name), call);
  check_same_call(all.narrow(0, sums.numel(), numbers.numel()), call);
  return all.narrow(0, 0, sums.numel());
}

// Passes gradients on, and refuses to be differentiated.
class DifferentiableOnce : public graph::Function<DifferentiableOnce> {
 public:
  static at::Tensor forward(graph::AutogradContext* /*context*/, const at::Tensor& gradient,
                            const at::Tensor& /*anchor*/) {
    return gradient;
  }
  static graph::variable_list backward(graph::AutogradContext* /*context*/,
                                       const graph::variable_list& /*gradients*/) {
    throw Error(ErrorCode::InvalidArgument,
                "SyncBatchNorm has no second derivative; where one is needed (a gradient penalty, "
                "say), use a BatchNorm of LibTorch, which uses only the samples of its own rank");
  }
};

class Normalize : public graph::Function<Normalize> {
 public:
  static at::Tensor forward(graph::AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& /*anchor*/,
                            const BatchStatistics& statistics, const NormalizationCall& call) {
    const auto type = statistics.mean.scalar_type();
    const auto in_type = [type](const std::optional<at::Tensor>& parameter) {
      return parameter ? std::optional(parameter->to(type)) : std::nullopt;
    };
    context->save_for_backward({input, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()),
                                statistics.mean, statistics.variance, statistics.count});
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<HeldCall>(call));
    if (input.numel() == 0) return input.clone();
    // In eval mode LibTorch normalizes with the statistics that it is given.
    return std::get<0>(at::native_batch_norm(input, in_type(weight), in_type(bias), statistics.mean,
                                             statistics.variance, /*training=*/false,
                                             /*momentum=*/0, call.eps));
  }

  static graph::variable_list backward(graph::AutogradContext* context,
                                       const graph::variable_list& gradients) {
    graph::variable_list result(6);
    {
      const PlainMode plain;
      compute(context, gradients.front(), result);
    }
    if (!at::GradMode::is_enabled()) return result;
    const at::Tensor anchor = at::empty({0}).requires_grad_(true);
    for (at::Tensor& gradient : result) {
      if (gradient.defined()) gradient = DifferentiableOnce::apply(gradient, anchor);
    }
    return result;
  }

 private:
  static void compute(graph::AutogradContext* context, const at::Tensor& gradient,
                      graph::variable_list& result) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &bias = saved[2], &mean = saved[3],
                     &variance = saved[4], &count = saved[5];
    const auto held = context->saved_data["call"].toCapsule();
    const NormalizationCall& call = static_cast<const HeldCall&>(*held).call;
    const int64_t channels = mean.numel();
    // This rank's sums of gradients, and of gradients times normalized values.
    at::Tensor sum, product = at::zeros_like(mean);
    if (input.numel() == 0) {
      sum = product;
    } else {
      std::tie(std::ignore, product, sum) = at::native_batch_norm_backward(
          gradient, input, std::nullopt, mean, variance, std::nullopt, std::nullopt,
          /*train=*/false, call.eps, std::array<bool, 3>{false, true, true});
    }
    if (weight.defined()) result[1] = product.to(weight.scalar_type());
    if (bias.defined()) result[2] = sum.to(bias.scalar_type());
    const at::Tensor all = sum_over_ranks(at::cat({sum, product}).to(at::kDouble), call)
                               .div(count.clamp_min(1))
                               .to(mean.scalar_type());
    if (!context->needs_input_grad(0)) return;
    const at::Tensor mean_gradient = all.narrow(0, 0, channels);
    const at::Tensor mean_product = all.narrow(0, channels, channels);
    const at::Tensor inverse = (variance + call.eps).rsqrt();
    const at::Tensor scale = weight.defined() ? inverse * weight : inverse;
    // scale * (gradient - mean_gradient - normalized * mean_product), in three passes.
    const auto broadcast = [&](const at::Tensor& values) { return over_channels(values, input); };
    result[0] = at::addcmul(broadcast(-mean_gradient * scale), input - broadcast(mean),
                            broadcast(-(inverse * mean_product * scale)))
                    .addcmul_(gradient, broadcast(scale))
                    .to(input.scalar_type());
  }
};

}  // namespace

BatchStatistics gather_statistics(const at::Tensor& input, const std::string& name,
                                  const ProcessSet& set) {
  const PlainMode plain;
  const int64_t values = values_per_channel(input);
  at::Tensor rows;
  {
    const NameTurn turn(name, set.id());
    rows = allgather(own_row(input.detach(), values), {.name = name, .process_set = set});
  }
  BatchStatistics merged = merge_rows(rows, input.size(1), statistics_type(input));
  merged.of_all_ranks = rows.size(0) == set.size();
  if (values <= 1) merged.small_count = static_cast<int64_t>(merged.count.item<double>());
  return merged;
}

at::Tensor normalize(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, const NormalizationCall& call) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const at::Tensor anchor = at::empty({0}).requires_grad_(at::GradMode::is_enabled());
  return Normalize::apply(input, given(weight), given(bias), anchor, statistics, call);
}

}  // namespace horon::torch_detail
