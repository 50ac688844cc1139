// Checkpoints of a training: model, optimizer, schedules, samplers, random numbers.
//
//   horon::DistributedRandomSampler sampler(60000);
//   horon::Checkpoints checkpoints("run/checkpoints", {.keep_last = 3});
//   checkpoints.add("model", *model).add("optimizer", optimizer).add_of_rank("sampler", sampler);
//   int64_t step = 0;
//   if (const auto found = checkpoints.load_latest()) step = found->step;
//   for (auto& batch : *loader) {
//     ...
//     if (++step % 1000 == 0) checkpoints.save(step, {.metric = mean_loss});
//   }
//   checkpoints.wait();
//
// One file for each checkpoint, written by rank 0, to a folder that it alone must see; all ranks
// name the same one. What is alike on all ranks comes from rank 0, and load() gives it to all; what
// each rank has of its own (random numbers, add_of_rank()) is gathered and given back to each.
// Where each process set trains a model of its own, each set has Checkpoints with its process_set
// and a folder of its own: then "all ranks" are those of the set, and "rank 0" is the lowest of
// them. Training that goes on from a checkpoint makes the same steps, bit for bit, as if it had
// never stopped (on the CPU, on as many ranks; the bindings' README.md names two exceptions). Save
// between steps: gradients are no part of it.
//
// The file: see checkpoint_file.h and the bindings' README.md. Python reads it:
// torch.load(file, weights_only=True)["model"] is a state_dict.
//
// All calls but add() and the destructor are collective over all ranks, and block; errors are the
// same on all ranks. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

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

struct CheckpointOptions {
  enum class Best : uint8_t { Lowest, Highest };

  // Files that are kept: the newest ones (0: all), and the ones with the best metric beside them.
  // One that this object's load_latest() or load() has found damaged stays, but does not count.
  size_t keep_last = 3;
  size_t keep_best = 1;
  Best best = Best::Lowest;
  // false: save() waits until the file is on the disk.
  bool in_background = true;
  // The ranks that train what is saved. On the others it is an Error(InvalidArgument).
  ProcessSet process_set = {};
};

struct CheckpointValues {
  // How good the model is, the same on all ranks (a metric of one rank's samples is a Mismatch). A
  // NaN is never the best.
  std::optional<double> metric = {};
  // The program's own: numbers, texts (UTF-8), dense tensors (no uint16, uint32, uint64 and floats
  // of 8 bits), and lists, tuples and dictionaries of them. Those of rank 0 are saved, with tensors
  // on the CPU. A list of any type (std::vector<double>) comes back as one of c10::IValue:
  // toListRef().
  std::map<std::string, c10::IValue> values = {};
};

struct LoadedCheckpoint {
  std::string path;
  int64_t step = 0;
  int ranks = 0;  // of the job that saved it
  std::optional<double> metric;
  std::map<std::string, c10::IValue> values;
};

class Checkpoints {
 public:
  // Rank 0 makes the folder; the first save() removes what a job that was killed while writing has
  // left there. Throws Error(OperationFailed), and Error(Mismatch) if the ranks name different
  // folders. The constructor and all calls but add() need rank 0: once it has joined, the others
  // throw Error(RankLeft). save() needs every rank.
  explicit Checkpoints(std::string folder, const CheckpointOptions& options = {});
  // Waits for the file that is being written; an error of it goes to the log.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  // Adds a thing that checkpoints hold, under a name, the same on all ranks and in each job. The
  // thing stays the program's and outlives this object. Throws Error(InvalidArgument) for a name
  // that is taken.
  //
  // A model: its parameters and buffers, as a state_dict of Python names them. Buffers that differ
  // from rank 0's (running means of each rank's batches) are kept for each rank, and given back in
  // a job of as many ranks; in others all ranks get rank 0's.
  Checkpoints& add(const std::string& name, const torch::nn::Module& module);
  // Tensors by name.
  Checkpoints& add(const std::string& name, const NamedTensors& tensors);
  // Options and state. SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS, also in a
  // DistributedOptimizer, at any step; others as their save() and load() do it. One whose state
  // differs between ranks (an AdasumOptimizer; one beside a LocalSgd) is for add_of_rank(): add()
  // or save() throws Error(InvalidArgument). For that each rank reads its state in save(), if the
  // optimizer is of a type named here and not itself a DistributedOptimizer.
  Checkpoints& add(const std::string& name, torch::optim::Optimizer& optimizer);
  // Anything with save(torch::serialize::OutputArchive&) const and
  // load(torch::serialize::InputArchive&) that is alike on all ranks: a schedule, a loss scale.
  template <class Thing>
  requires(!std::is_base_of_v<torch::nn::Module, Thing> &&
           !std::is_base_of_v<torch::optim::Optimizer, Thing> &&
           requires(Thing & thing, torch::serialize::InputArchive& in) {
             thing.load(in);
           }) Checkpoints& add(const std::string& name, Thing& thing) {
    return add_archived(name, archived(thing), false);
  }
  // The same of something that each rank has of its own: a sampler, a loader. In a job of another
  // number of ranks it gets what all ranks have saved, by
  // load_resharded(std::vector<torch::serialize::InputArchive>&); without that function (LibTorch's
  // optimizers have none), loading there is an Error(InvalidArgument). The tensors of a module and
  // of an optimizer stay on the devices of their parameters.
  template <class Thing>
  Checkpoints& add_of_rank(const std::string& name, Thing& thing) {
    return add_archived(name, archived(thing), true);
  }

  // Copies everything, and lets a thread write it while training goes on. If the last file is still
  // being written, it waits for that first. Throws Error(OperationFailed) if the last file could
  // not be written; then this one is not written, and save() may be called again. Throws
  // Error(Mismatch) if the ranks differ about step or metric or hold different things, and
  // Error(InvalidArgument) for a value that Python could not read (a text that is not UTF-8: bytes
  // are a tensor) and for a tensor that load() could not write (an expanded one).
  void save(int64_t step, const CheckpointValues& values = {});
  // Waits until the last file is on the disk. Throws Error(OperationFailed) if it could not be
  // written.
  void wait();

  // Loads the newest checkpoint of the folder, or the one with the best metric: nothing if there is
  // none. One that is damaged, cut off or no checkpoint is passed over with a warning; if there is
  // no other, Error(OperationFailed) names each file and what is wrong with it. If it does not fit
  // (a parameter of another shape, another optimizer, a name that is missing):
  // Error(InvalidArgument) that names file and part, and nothing has been changed. (If a thing's
  // own load() throws, what was loaded before it stays.)
  //
  // In a job of another number of ranks random numbers begin anew, with a seed made of what rank 0
  // saved and the rank; a warning says so.
  std::optional<LoadedCheckpoint> load_latest();
  std::optional<LoadedCheckpoint> load_best();
  // Loads this one. Errors as above, and Error(Mismatch) if the ranks give different paths; rank 0
  // alone must see the file.
  LoadedCheckpoint load(const std::string& path);

  // Their paths, judged by the ends of the files alone; nothing if there is none.
  std::optional<std::string> latest();
  std::optional<std::string> best();

 private:
  struct Archived {
    std::function<void(torch::serialize::OutputArchive&)> save;
    std::function<void(torch::serialize::InputArchive&)> load;
    std::function<void(std::vector<torch::serialize::InputArchive>&)> load_resharded;
    // One of these, or none: their tensors stay on their devices when they are loaded.
    torch::optim::Optimizer* optimizer = nullptr;
    torch::nn::Module* module = nullptr;
  };
  template <class Thing>
  static Archived archived(Thing& thing) {
    Archived result;
    result.save = [&thing](torch::serialize::OutputArchive& out) { thing.save(out); };
    result.load = [&thing](torch::serialize::InputArchive& in) { thing.load(in); };
    if constexpr (std::is_base_of_v<torch::optim::Optimizer, Thing>) {
      result.optimizer = &thing;
    } else if constexpr (std::is_base_of_v<torch::nn::Module, Thing>) {
      result.module = &thing;
    }
    if constexpr (requires(std::vector<torch::serialize::InputArchive> & ranks) {
                    thing.load_resharded(ranks);
                  }) {
      result.load_resharded = [&thing](auto& ranks) { thing.load_resharded(ranks); };
    }
    return result;
  }
  Checkpoints& add_archived(const std::string& name, Archived thing, bool of_rank);

  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace horon
