// The library's own work on tensors, whatever grad or inference mode the program is in.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

namespace horon::torch_detail {

// While it lives, tensors that this thread makes are ordinary ones, which autograd may use later,
// and operations are not recorded in graphs.
struct PlainMode {
  c10::InferenceMode not_inference{false};
  at::NoGradGuard no_grad;  // constructed second: leaving inference mode turns gradient mode on
};

}  // namespace horon::torch_detail
