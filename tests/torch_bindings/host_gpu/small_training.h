// A small model's parameters and batches, the same on all ranks, for training that is compared with
// that of one process.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>

#include "horon/torch_bindings/session.h"

namespace horon::testing_support {

constexpr int64_t kRows = 4;  // of a rank, in a step

inline void fill_parameters(torch::nn::Sequential& model) {
  const at::NoGradGuard no_grad;
  int64_t number = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    const at::Tensor values = at::arange(parameter.numel(), at::kFloat).add_(++number);
    parameter.copy_(values.mul(0.7).sin().mul_(0.4).view(parameter.sizes()));
  }
}

// The rows of all ranks, or of one; six columns.
inline at::Tensor batch(int step, int rank_of = -1) {
  const at::Tensor all =
      at::arange(kRows * size() * 6, at::kFloat).add_(31 * step).mul_(0.37).cos().view({-1, 6});
  return rank_of < 0 ? all : all.slice(0, kRows * rank_of, kRows * (rank_of + 1));
}

// Of a model with three outputs.
inline at::Tensor loss_of(torch::nn::Sequential& model, const at::Tensor& input) {
  const at::Tensor target = input.slice(1, 0, 3).mul(0.5);
  return model->forward(input).sub(target).pow(2).mean();
}

}  // namespace horon::testing_support
