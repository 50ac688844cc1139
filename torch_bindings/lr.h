// The learning rate for a batch that has grown with the number of ranks.
#pragma once

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon {

// N ranks take N batches in one step, k backward passes on each rank k times as many. The linear
// scaling rule (Goyal et al. 2017, "Accurate, Large Minibatch SGD") multiplies the learning rate of
// one batch by the number of batches, for gradients that are the mean over them. Where they are
// summed (op Sum; passes without average_aggregated_gradients) the step has grown already, and that
// factor is left out. Adaptive optimizers and large N want less, or a warm-up.
//
// `options`: those of the optimizer, of which op, process_set, backward_passes_per_step and
// average_aggregated_gradients count. A program that divides its loss by k itself says
// `.average_aggregated_gradients = true` here alone. Local. Throws Error(NotInitialized).
inline double scale_lr(double lr, const GradientReducerOptions& options = {}) {
  const int ranks = options.op == ReduceOp::Sum ? 1 : options.process_set.size();
  const int passes = options.average_aggregated_gradients ? options.backward_passes_per_step : 1;
  return lr * ranks * passes;
}
inline double scale_lr(double lr, ReduceOp op) { return scale_lr(lr, {.op = op}); }

}  // namespace horon
