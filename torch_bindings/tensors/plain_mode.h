// For tensor work of our own inside the program's autograd, grad and inference modes.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace horon::torch_detail {

// While it lives, tensors made here are ordinary ones (autograd may use them later), and what is
// done with them leaves no trace in graphs. For the current thread.
struct PlainMode {
  c10::InferenceMode not_inference{false};
  at::NoGradGuard no_grad;  // the second: leaving inference mode turns gradients on
};

}  // namespace horon::torch_detail
