// Training with few collectives, where the network is slow beside a step: the ranks take steps by
// themselves, and now and then their parameters are averaged.
//
//   torch::optim::AdamW plain(model->parameters());   // LibTorch's own: a step reduces nothing
//   horon::broadcast_parameters(*model, 0);
//   horon::LocalSgd local(*model, {.steps = 16});
//   for (int step = 0; step < steps; ++step) {
//     ...
//     plain.step();
//     local.step();      // each 16th averages
//   }
//   local.average();     // before an evaluation or a checkpoint
//
// That is local SGD (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019, arXiv
// 1805.09767). With `outer_lr` and `outer_momentum` the mean over the ranks of what each has moved
// since the last average, x0 - x, is the gradient of an outer step of SGD with momentum from x0;
// the next steps begin where that ends. That is DiLoCo (Douillard et al. 2023, arXiv 2311.08105),
// which averages after hundreds of steps, with 0.7 and 0.9, and AdamW as the ranks' own optimizer.
//
// Momentum and whatever else the optimizer keeps stay the rank's own: Checkpoints take it (and an
// amp::GradScaler) by add_of_rank(). To go on with another number of ranks, give all of them rank
// 0's by broadcast_optimizer_state(), and save that by add(). The options don't change a rank's own
// steps: choose their learning rate for the batch of one rank.
//
// Post-local SGD (Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, arXiv
// 1808.07217) reduces gradients in the first steps, and later among ranks that are near:
//
//   auto reducer = std::make_unique<horon::GradientReducer>(*model);   // beside the same optimizer
//   ...
//   reducer.reset();                                // after some epochs, or one of a process set
//   horon::LocalSgd local(*model, {.steps = 16});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace horon {

// The same on all ranks of the process set.
struct LocalSgdOptions {
  int64_t steps = 8;  // of a rank, from one average to the next
  double outer_lr = 1;
  double outer_momentum = 0;  // from 0, below 1
  bool outer_nesterov = true;
  // What the ranks have moved in float32 and complex64 travels in 16 bits, or between hosts in
  // blocks of int8. Prefer BFloat16: Float16 makes 0 of moves below 3e-8.
  Compression compression = Compression::None;
  // The ranks that average with each other; on the others nothing happens.
  ProcessSet process_set = {};
  // What its collectives are called. Two that may average at the same time need two names.
  std::string name = "local_sgd";
};

class LocalSgd {
 public:
  // Of a module: the parameters that require a gradient now, and its buffers of floating or complex
  // numbers (running means and the like), which are averaged as they are. In a list of tensors one
  // that requires no gradient counts as such a buffer. Others (integers, floats of 8 bits) stay
  // each rank's own. Holds the tensors; with an outer step or compression also a copy of each
  // parameter, and with momentum two. Local. Throws Error(InvalidArgument) naming the option, or a
  // tensor that collectives don't take or that shares its name; Error(NotInitialized).
  explicit LocalSgd(const NamedTensors& tensors, LocalSgdOptions options = {});
  explicit LocalSgd(const torch::nn::Module& module, LocalSgdOptions options = {});

  // After each step of the optimizer. True if it has averaged. All ranks call it equally often, or
  // join(), after which all count anew.
  bool step();
  // Averages now, however many steps it has been; the next average comes `steps` later. Collective,
  // blocks. With an outer step or compression it makes that step if any rank has called step() or
  // has moved its parameters since the last average; if none has, parameters and averages() stay as
  // they are. (A plain average is always made: of ranks that are alike it changes last bits at
  // most.)
  // What the ranks hold and the options are compared first: where they differ, and with an outer
  // step or compression also if the ranks have not begun alike, all ranks throw Error(Mismatch)
  // that names it, and nothing has moved. After another Error a parameter may be averaged or not.
  // With an outer step or compression a rank that has missed an average in a join() then needs
  // broadcast_parameters() and broadcast_state() from one that has not.
  void average();

  // Since the last average, on this rank.
  int64_t steps_since_average() const { return since_; }
  int64_t averages() const { return averages_; }

  // What the outer step needs. For broadcast_state() and Checkpoints::add(); save after average(),
  // when all ranks hold the same. load() throws Error(InvalidArgument), and nothing has changed, if
  // the archive is of another model or of an outer step with other copies.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::Tensor start;     // where the steps since the last average have begun
    at::Tensor momentum;  // of the outer step
  };

  void add(const std::string& name, const at::Tensor& tensor);
  bool has_start() const;
  bool has_momentum() const { return options_.outer_momentum != 0; }
  int64_t kept() const;
  void begin_anew_after_join();
  void require_alike() const;
  bool agree_on_outer_step(std::vector<at::Tensor>& changes);
  void move_on(Parameter& parameter, const at::Tensor& change) const;

  LocalSgdOptions options_;
  bool member_;
  std::vector<Parameter> parameters_;
  NamedTensors buffers_;
  bool began_alike_ = false;  // has been seen
  uint64_t joins_ = 0;        // of the process set, that have ended
  int64_t since_ = 0;
  int64_t averages_ = 0;
};

}  // namespace horon
