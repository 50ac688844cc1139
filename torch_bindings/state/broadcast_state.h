// All ranks begin with the parameters, buffers and optimizer state of one rank.
//
//   horon::broadcast_parameters(*model, 0);        // or of a list, a dictionary, a map of tensors
//   horon::broadcast_optimizer_state(optimizer, 0);
//
// Collective over the process set (default: all ranks); blocks. `root` is a rank of the world that
// is in the set. What the ranks hold (names, dtypes, shapes, types) is compared first: where it
// differs every rank throws one Error(Mismatch) that names the first difference, and nothing has
// been written.
#pragma once

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace torch::optim {
class Optimizer;
}

namespace horon {

// Overwrites the tensors with the root's values, in place, whether they require grad or not. Of a
// module: its parameters and its buffers (running means and the like). A tensor that is listed
// under several names (tied weights) is sent once. Throws Error: Mismatch, InvalidArgument (a
// tensor that collectives don't take, see collectives.h; two tensors of one name; a root that is
// not in the set).
void broadcast_parameters(const NamedTensors& tensors, int root = 0,
                          const ProcessSet& process_set = {});

// Gives every rank the options (learning rates, ...) and the state (momentum, step counts, ...) of
// the root's optimizer, however many steps each has made; state that the root's optimizer has not
// is dropped. No step is taken. Call it after broadcast_parameters().
//
// SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS, also within a DistributedOptimizer: tensor by
// tensor, LBFGS after any number of steps. Lars, Lamb and an optimizer of your own travel in one
// piece as its save() writes it and its load() reads it, with all tensors on the device of the
// first parameter. If it keeps state on any rank but has no save(), every
// rank throws Error(InvalidArgument); if it has neither, it keeps its options on each rank.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root = 0,
                               const ProcessSet& process_set = {});

}  // namespace horon
