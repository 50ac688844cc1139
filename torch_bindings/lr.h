// The learning rate for a batch that has grown with the number of ranks.
#pragma once

#include "horon/ops/session/session.h"

namespace horon {

// N ranks take N batches in one step. With averaged gradients the linear scaling rule (Goyal et al.
// 2017, "Accurate, Large Minibatch SGD") multiplies the learning rate of one rank by N; with summed
// gradients the step has grown already. Adaptive optimizers and large N want less, or a warm-up.
// Throws Error(NotInitialized).
inline double scale_lr(double lr, ReduceOp op = ReduceOp::Average) {
  return op == ReduceOp::Sum ? lr : lr * size();
}

}  // namespace horon
