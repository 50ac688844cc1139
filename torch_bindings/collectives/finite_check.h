// Is there a NaN or an infinity anywhere? What loss scaling asks before each step.
//
//   if (horon::found_nonfinite(gradients)) {
//     scale /= 2;
//   } else {
//     optimizer.step();
//   }
//
// HORON_CHECK_FINITE and GradientReducerOptions::check_finite make an error of it instead, which
// names tensor and rank.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"

namespace horon {

struct FiniteCheckOptions {
  std::string name = {};  // empty: "found_nonfinite"; calls of one name wait for each other
  ProcessSet process_set = {};
};

// True if some element of some tensor is NaN or infinite on some rank of the set: the same answer
// on all of them, and no error. Undefined tensors and those of integers count as finite; of sparse
// ones the values are looked at. Ranks may give different tensors. Collective: one allreduce of one
// byte, for however many tensors. Blocks. Any thread. Throws Error as allreduce() does.
bool found_nonfinite(at::TensorList tensors, const FiniteCheckOptions& options = {});

}  // namespace horon
