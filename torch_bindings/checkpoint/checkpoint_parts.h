// The things that a checkpoint holds and that are alike on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include "horon/torch_bindings/collectives/rank_agreement.h"
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

namespace horon::torch_detail {

c10::impl::GenericDict text_dictionary();
// The value of this name in a dictionary. Throws Error(InvalidArgument) if it has none.
c10::IValue value_in(const c10::IValue& dictionary, const std::string& name);
c10::impl::GenericList list_in(const c10::IValue& dictionary, const std::string& name);
// Bytes as a uint8 tensor, and back.
at::Tensor bytes_tensor(const std::string& bytes);
std::string tensor_bytes(const at::Tensor& tensor);

// A copy of a program's value and of all that it holds, on the host, as Python reads it: lists of
// any type become lists of c10::IValue, because a list that knows its type is pickled as a class of
// LibTorch. Throws Error(InvalidArgument), with the value's name, for what Python could not read.
c10::IValue plain_copy(const std::string& name, const c10::IValue& value);

// Loads the optimizer or the module, whichever is not null, from an archive; its tensors stay on
// their devices. Returns false if both are null.
bool load_there(torch::optim::Optimizer* optimizer, torch::nn::Module* module,
                const std::string& bytes);

// What `save` writes to an archive, as bytes.
std::string archive_bytes(const std::function<void(torch::serialize::OutputArchive&)>& save);
// Archive of such bytes, with tensors as device_of_archives() has it.
torch::serialize::InputArchive archive_from(const std::string& bytes);

// The rank of the set that reads and writes: the lowest.
int writer_of(const ProcessSet& set);

// One of these things. "The writer" is writer_of() the process set of the Checkpoints.
class CheckpointPart {
 public:
  virtual ~CheckpointPart() = default;
  // What all ranks must have alike. Throws for what can't be saved and loaded in this set.
  virtual Fact fact(const std::string& name, const ProcessSet& set) const = 0;
  // What take() needs of other ranks. Throws where another rank's part is not the writer's, and
  // would be lost. Collective.
  virtual void gather(const std::string& /*name*/, const ProcessSet& /*set*/) {}
  // A copy, in the memory of the host. On the writer.
  virtual c10::IValue take() = 0;
  // Why `saved` can't be loaded; empty if it can. On the writer; changes nothing.
  virtual std::string misfit(const c10::IValue& saved) const = 0;
  // On the writer.
  virtual void load(const c10::IValue& saved) = 0;
  // Gives all ranks of the set what the writer has loaded. Collective.
  virtual void spread(const std::string& name, const ProcessSet& set) = 0;
  // Tensors that each rank changes by itself (running means): other ranks' may differ from the
  // writer's.
  virtual NamedTensors own_tensors() const { return {}; }
  // When it is loaded. Archives come before the bulk, since they may refuse what they are given,
  // and after the optimizers, since a schedule has the last word on a learning rate.
  enum class Turn : uint8_t { Optimizer, Archive, Bulk };
  virtual Turn turn() const { return Turn::Bulk; }
};

using NamedParts = std::vector<std::pair<std::string, std::unique_ptr<CheckpointPart>>>;

// A row-major copy on the host, with a storage of its own.
at::Tensor host_copy(const at::Tensor& tensor);

// Called for each checkpoint; `own`: those of `tensors` that may differ from rank to rank.
std::unique_ptr<CheckpointPart> tensors_part(std::function<NamedTensors()> tensors,
                                             std::function<NamedTensors()> own);
std::unique_ptr<CheckpointPart> optimizer_part(torch::optim::Optimizer& optimizer);
std::unique_ptr<CheckpointPart> archive_part(
    std::function<void(torch::serialize::OutputArchive&)> save,
    std::function<void(torch::serialize::InputArchive&)> load);

}  // namespace horon::torch_detail
