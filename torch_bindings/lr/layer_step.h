// The steps of LARS and LAMB on one parameter in host memory, in as few passes over it as their
// norms allow. LibTorch's threads share the work.
#pragma once

#include <ATen/core/Tensor.h>

#include "horon/torch_bindings/lr/layer_kernels.h"

namespace horon::torch_detail {

// float32 and float64 on the CPU, without gaps. For others LibTorch's operations make the step.
bool has_layer_step(const at::Tensor& parameter);

// How the layer's factor is found.
struct LayerFactor {
  bool adapts = true;
  double trust_coefficient = 1;  // LARS
  double eps = 0;                // LARS
  double least_norm = 0;         // LAMB
  double largest_norm = 0;       // LAMB
};

// As lars.h says; `terms.rate` is found here. The gradient is dense; if its layout or dtype is not
// the parameter's, it is copied first. So is `buffer` (undefined if there is no momentum), once.
void lars_step(const at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& buffer,
               LarsTerms terms, const LayerFactor& factor);
// As lamb.h says.
void lamb_step(const at::Tensor& parameter, const at::Tensor& gradient, at::Tensor& first,
               at::Tensor& second, const LambTerms& terms, double lr, const LayerFactor& factor);

}  // namespace horon::torch_detail
