// All ranks begin with the parameters, buffers and optimizer state of one rank.
//
// Collective over all ranks; blocks. What the ranks hold (names, dtypes, shapes, types) is compared
// first: where it differs every rank throws one Error(Mismatch) that names the first difference,
// and nothing has been written.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace horon {

// Overwrites the tensors with the root's values, in place, whether they require grad or not. A
// tensor that is listed under several names (tied weights) is sent once. Throws Error: Mismatch,
// InvalidArgument (a tensor that collectives don't take, see collectives.h; a root that is no
// rank).
void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& named, int root = 0);
void broadcast_parameters(const std::vector<std::pair<std::string, at::Tensor>>& named,
                          int root = 0);
void broadcast_parameters(std::initializer_list<std::pair<std::string, at::Tensor>> named,
                          int root = 0);
// The parameters and the buffers (running means and the like) of a module:
// broadcast_parameters(*model, 0).
void broadcast_parameters(const torch::nn::Module& module, int root = 0);

// Gives every rank the options (learning rates, ...) and the state (momentum, step counts, ...) of
// the root's optimizer, as torch::save and torch::load do; state that others had and the root has
// not is dropped. Call it after broadcast_parameters(). Throws Error(InvalidArgument) on every rank
// if the root's optimizer can't be saved: LBFGS after its first step, and an optimizer of your own
// that keeps state but has no save() and load(). One of your own that has neither state nor save()
// keeps its options on each rank.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root = 0);

}  // namespace horon
