// The learning rate for a batch that has grown with the number of ranks.
#pragma once

#include <cstdint>

#include "horon/torch_bindings/gradients/gradient_reducer.h"

namespace horon {

// What becomes of a learning rate when k batches make one step.
enum class LrScaling : uint8_t {
  Linear,      // k times as large (Goyal et al. 2017, "Accurate, Large Minibatch SGD"): SGD
  SquareRoot,  // the square root of k times (Krizhevsky 2014; for Adam, Malladi et al. 2022)
  None,        // as it is
};

// N ranks take N batches in one step, p backward passes on each rank p times as many: k = N * p.
// Returns the learning rate for k batches, from that for one. Both rules are for gradients that are
// the mean over all batches. Where they are summed (op Sum over ranks; passes without
// average_aggregated_gradients) a step of SGD has grown by that factor already, and it is divided
// out. (The steps of adaptive optimizers do not grow with a sum: use Average with them.) With
// Adasum, which adapts to how alike the ranks are, the learning rate is that of one rank: N counts
// as 1. Large k want a warm-up as well (schedule.h).
//
// `options`: those of the optimizer, of which op, process_set, backward_passes_per_step and
// average_aggregated_gradients count. A program that divides its loss by p itself says
// `.average_aggregated_gradients = true` here alone. Local; any thread. Throws
// Error(NotInitialized); Error(InvalidArgument) for an impossible learning rate or number of
// passes, and for another op than Average, Sum and Adasum.
double scale_lr(double lr, const GradientReducerOptions& options = {},
                LrScaling rule = LrScaling::Linear);
double scale_lr(double lr, LrScaling rule);
double scale_lr(double lr, ReduceOp op);

namespace torch_detail {

// The factor between the gradients of so many ranks and their mean over ranks and passes.
double grown_by_sums(const GradientReducerOptions& options, double ranks);

}  // namespace torch_detail
}  // namespace horon
