// All ranks begin, or go on after a join(), with what one rank has.
//
//   horon::broadcast_parameters(*model, 0);        // or of a list, a dictionary, a map of tensors
//   horon::broadcast_optimizer_state(optimizer, 0);
//   horon::broadcast_state(scheduler, 0);          // anything that saves and loads its state
//
// Collective over the process set (default: all ranks); blocks. `root` is a rank of the world that
// is in the set. What the ranks hold (names, dtypes, shapes, types) is compared first: where it
// differs every rank throws one Error(Mismatch) that names the first difference, and nothing has
// been written.
#pragma once

#include <functional>
#include <type_traits>
#include <typeinfo>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

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

namespace torch_detail {

// How a thing is saved and loaded.
struct ArchivedState {
  const std::type_info& type;
  std::function<void(::torch::serialize::OutputArchive&)> save;
  std::function<void(::torch::serialize::InputArchive&)> load;
};
void broadcast_archived(const ArchivedState& state, int root, const ProcessSet& process_set);

}  // namespace torch_detail

// Gives every rank the state of the root's thing; its type is the same on all ranks: a LrScheduler,
// a ReduceLrOnPlateau, an AdaScale, an amp::GradScaler, an EarlyStopping, a BestCheckpoint, or
// anything with save(torch::serialize::OutputArchive&) const and
// load(torch::serialize::InputArchive&). Of a module these are its parameters and buffers, of an
// optimizer it is broadcast_optimizer_state().
// Tensors that the root has on a GPU arrive on the receiving rank's GPU, as objects.h says. Not for
// what each rank has of its own (a sampler). If save() or load() throws on one rank, all ranks
// throw, as on_all_ranks() does; Error(RankLeft) once the root has joined.
template <class Thing>
requires requires(Thing& thing, ::torch::serialize::InputArchive& in) { thing.load(in); }
void broadcast_state(Thing& thing, int root = 0, const ProcessSet& process_set = {}) {
  if constexpr (std::is_base_of_v<::torch::nn::Module, Thing>) {
    broadcast_parameters(thing, root, process_set);
  } else if constexpr (std::is_base_of_v<::torch::optim::Optimizer, Thing>) {
    broadcast_optimizer_state(thing, root, process_set);
  } else {
    torch_detail::broadcast_archived(
        {typeid(Thing), [&thing](auto& archive) { thing.save(archive); },
         [&thing](auto& archive) { thing.load(archive); }},
        root, process_set);
  }
}

}  // namespace horon
