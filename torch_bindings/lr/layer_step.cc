#include "horon/torch_bindings/lr/layer_step.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <ATen/ops/empty.h>

#include "horon/torch_bindings/gradients/gradient_norm.h"
#include "horon/torch_bindings/lr/layer_ratio.h"
#include "horon/torch_bindings/tensors/memory_ranges.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

constexpr int64_t kStepGrain = 32'768;  // elements for each thread, as in LibTorch's own loops
// Squares are added up block by block, so that the bits do not depend on the number of threads.
constexpr int64_t kStepBlock = 16'384;
constexpr int64_t kStepBlocksPerThread = 2;

template <class T>
T* memory_of(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

template <class T>
void lars_step_of(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& buffer,
                  const LarsTerms& terms) {
  T* const values = memory_of<T>(parameter);
  const T* const from = static_cast<const T*>(gradient.const_data_ptr());
  T* const kept = buffer.defined() ? memory_of<T>(buffer) : nullptr;
  for_each_range(parameter, kStepGrain, [&](int64_t begin, int64_t end) {
    lars_loop(values + begin, from + begin, kept == nullptr ? nullptr : kept + begin, end - begin,
              terms);
  });
}

template <class T>
LambSquares average_of(const at::Tensor& parameter, const at::Tensor& gradient,
                       const at::Tensor& first, const at::Tensor& second, const LambTerms& terms) {
  const T* const values = static_cast<const T*>(parameter.const_data_ptr());
  const T* const from = static_cast<const T*>(gradient.const_data_ptr());
  T* const means = memory_of<T>(first);
  T* const squares = memory_of<T>(second);
  const int64_t count = parameter.numel();
  const auto block = [&](int64_t begin) {
    return lamb_average(values + begin, from + begin, means + begin, squares + begin,
                        std::min(kStepBlock, count - begin), terms);
  };
  if (count <= kStepBlock) return block(0);
  const at::Tensor sums = at::empty({2, (count + kStepBlock - 1) / kStepBlock}, at::kDouble);
  const at::Tensor of_parameter = sums[0], of_move = sums[1];
  auto* const parameter_sums = of_parameter.mutable_data_ptr<double>();
  auto* const move_sums = of_move.mutable_data_ptr<double>();
  for_each_range(of_parameter, kStepBlocksPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const LambSquares sum = block(i * kStepBlock);
      parameter_sums[i] = sum.parameter;
      move_sums[i] = sum.move;
    }
  });
  LambSquares all;
  for (int64_t i = 0; i < of_parameter.numel(); ++i) {
    all.parameter += parameter_sums[i];
    all.move += move_sums[i];
  }
  return all;
}

template <class T>
void lamb_step_of(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first,
                  const at::Tensor& second, const LambTerms& terms, double lr,
                  const LayerFactor& factor) {
  const LambSquares squares = average_of<T>(parameter, gradient, first, second, terms);
  double ratio = 1;
  if (factor.adapts) {
    const double weights =
        std::clamp(std::sqrt(squares.parameter), factor.least_norm, factor.largest_norm);
    ratio = layer_ratio(weights, std::sqrt(squares.move));
  }
  T* const values = memory_of<T>(parameter);
  const T* const means = static_cast<const T*>(first.const_data_ptr());
  const T* const mean_squares = static_cast<const T*>(second.const_data_ptr());
  for_each_range(parameter, kStepGrain, [&](int64_t begin, int64_t end) {
    lamb_move(values + begin, means + begin, mean_squares + begin, end - begin, terms, ratio, lr);
  });
}

}  // namespace

bool has_layer_step(const at::Tensor& parameter) {
  const at::ScalarType dtype = parameter.scalar_type();
  return parameter.is_cpu() && parameter.layout() == at::kStrided &&
         (dtype == at::kFloat || dtype == at::kDouble) &&
         parameter.is_non_overlapping_and_dense() && !parameter.is_neg();
}

void lars_step(const at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& buffer,
               LarsTerms terms, const LayerFactor& factor) {
  const at::Tensor from = laid_out_as(parameter, gradient);
  if (buffer.defined()) buffer = laid_out_as(parameter, buffer);
  if (factor.adapts) {
    const double weights = std::sqrt(sum_of_squares(parameter.detach()));
    const double denominator = std::sqrt(sum_of_squares(from)) + terms.weight_decay * weights;
    terms.rate = layer_ratio(weights * factor.trust_coefficient, denominator + factor.eps);
  }
  if (parameter.scalar_type() == at::kFloat) {
    lars_step_of<float>(parameter, from, buffer, terms);
  } else {
    lars_step_of<double>(parameter, from, buffer, terms);
  }
  mark_written(parameter);
}

void lamb_step(const at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& first,
               at::Tensor& second, const LambTerms& terms, double lr, const LayerFactor& factor) {
  const at::Tensor from = laid_out_as(parameter, gradient);
  first = laid_out_as(parameter, first);
  second = laid_out_as(parameter, second);
  if (parameter.scalar_type() == at::kFloat) {
    lamb_step_of<float>(parameter, from, first, second, terms, lr, factor);
  } else {
    lamb_step_of<double>(parameter, from, first, second, terms, lr, factor);
  }
  mark_written(parameter);
}

}  // namespace horon::torch_detail
