#include "horon/torch_bindings/checkpoint/checkpoint_parts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/json.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/checkpoint/rank_state.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/state/broadcast_state.h"
#include "horon/torch_bindings/state/optimizer_state.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/sharded_state.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"
#include "horon/torch_bindings/tensors/wrapped_optimizer.h"

namespace horon::torch_detail {
namespace {

using core::concat;

[[noreturn]] void refuse_value(const std::string& name, const std::string& what, const char* cure) {
  throw Error(ErrorCode::InvalidArgument, concat("checkpoints: the value \"", name, "\" has a ",
                                                 what, ", which Python can't read; give ", cure));
}

at::Tensor plain_tensor(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) refuse_value(name, "tensor that is undefined", "None");
  if (tensor.layout() != at::kStrided) {
    refuse_value(name, concat("tensor of layout ", tensor.layout()), "dense ones");
  }
  if (is_moved_only(tensor)) {
    refuse_value(name, concat("tensor of dtype ", tensor.scalar_type()), "its view as bytes");
  }
  return tensor.detach().clone().cpu();
}

c10::IValue plain(const std::string& name, const c10::IValue& value) {
  if (value.isTensor()) return plain_tensor(name, value.toTensor());
  if (value.isString() && !core::is_utf8(value.toStringRef())) {
    refuse_value(name, "text that is not UTF-8", "bytes as a uint8 tensor");
  }
  if (value.isList()) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const c10::IValue& element : value.toListRef()) list.push_back(plain(name, element));
    return list;
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const c10::IValue& element : value.toTupleRef().elements()) {
      elements.push_back(plain(name, element));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isGenericDict()) {
    const c10::impl::GenericDict dictionary = value.toGenericDict();
    c10::impl::GenericDict copies(dictionary.keyType(), c10::AnyType::get());
    for (const auto& entry : dictionary) {
      copies.insert(plain(name, entry.key()), plain(name, entry.value()));
    }
    return copies;
  }
  if (value.isNone() || value.isScalar() || value.isString() || value.isDevice()) return value;
  refuse_value(name, value.tagKind(), "numbers, texts, tensors, lists, tuples and dictionaries");
}

class TensorsPart : public CheckpointPart {
 public:
  TensorsPart(std::function<NamedTensors()> tensors, std::function<NamedTensors()> own)
      : tensors_(std::move(tensors)), own_(std::move(own)) {}

  Fact fact(const std::string& name, const ProcessSet& /*set*/) const override {
    Fingerprint all;
    const NamedTensors tensors = tensors_();
    for (const auto& [key, tensor] : tensors) {
      check_writable(real_memory(tensor), key);  // else it could be saved, but not loaded
      all.add(concat(key, " ", type_and_shape(tensor, key)));
    }
    return {concat("\"", name, "\""), concat(tensors.size(), " tensors"), all.value()};
  }

  c10::IValue take() override {
    const PlainMode plain;
    c10::impl::GenericDict copies = text_dictionary();
    std::map<const void*, at::Tensor> seen;  // tied tensors stay tied
    UniqueNames names;
    for (const auto& [key, tensor] : tensors_()) {
      // The file does not take dtypes that collectives only move.
      check_tensor(tensor.is_complex() ? real_memory(tensor) : tensor, key);
      if (!names.add({key, tensor})) continue;
      at::Tensor& copy = seen[tensor.unsafeGetTensorImpl()];
      if (!copy.defined()) copy = host_copy(tensor);
      copies.insert(key, copy);
    }
    return copies;
  }

  std::string misfit(const c10::IValue& saved) const override {
    if (!saved.isGenericDict()) return "it holds no tensors of that name";
    const c10::impl::GenericDict copies = saved.toGenericDict();
    for (const auto& [key, tensor] : tensors_()) {
      const auto copy = copies.find(key);
      if (copy == copies.end()) return concat("it has no tensor \"", key, "\"");
      const std::string had = type_and_shape(copy->value().toTensor(), key);
      const std::string has = type_and_shape(tensor, key);
      if (had != has) return concat("its tensor \"", key, "\" is ", had, ", but here it is ", has);
    }
    return {};
  }

  void load(const c10::IValue& saved) override {
    const PlainMode plain;
    const c10::impl::GenericDict copies = saved.toGenericDict();
    for (const auto& [key, tensor] : tensors_()) {
      at::Tensor(tensor.detach()).copy_(copies.at(key).toTensor());
    }
  }

  void spread(const std::string& /*name*/, const ProcessSet& set) override {
    broadcast_parameters(tensors_(), writer_of(set), set);
  }
  NamedTensors own_tensors() const override { return own_(); }

 private:
  std::function<NamedTensors()> tensors_;
  std::function<NamedTensors()> own_;
};

// Known optimizers are taken apart into options and tensors; others write an archive.
class OptimizerPart : public CheckpointPart {
 public:
  explicit OptimizerPart(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  Fact fact(const std::string& name, const ProcessSet& set) const override {
    require_shards_within(set);
    Fingerprint all;
    for (c10::IValue parameter : parameters()) all.add(parameter.toStringRef());
    // Process sets may train a model each, of which the writer has only its own.
    const std::vector<int> ranks = ranks_of_steps(optimizer_);
    const std::string of_ranks = ranks.empty() ? "" : concat(" of ", core::name_ranks(ranks));
    return {concat("\"", name, "\""), type() + of_ranks, all.value()};
  }

  // The writer is the lowest of those that share the state: see require_shards_within().
  void gather(const std::string& name, const ProcessSet& set) override {
    if (ShardedState* const sharded = sharded_state()) return sharded->consolidate_state();
    require_same_state(name, optimizer_, set);
  }

  c10::IValue take() override {
    const PlainMode plain;
    c10::impl::GenericDict saved = text_dictionary();
    saved.insert("type", type());
    saved.insert("parameters", parameters());
    if (!is_known_optimizer(optimizer_)) {
      saved.insert("archive", bytes_tensor(archive_of_own()));
      return saved;
    }
    const TakenApart apart = take_apart(optimizer_);
    c10::impl::GenericList tensors(c10::AnyType::get());
    for (const at::Tensor& tensor : apart.tensors) tensors.push_back(host_copy(tensor));
    saved.insert("options", bytes_tensor(apart.bytes));
    saved.insert("tensors", tensors);
    return saved;
  }

  std::string misfit(const c10::IValue& saved) const override {
    if (!saved.isGenericDict() || !saved.toGenericDict().contains("parameters")) {
      return "it holds no optimizer of that name";
    }
    if (const std::string had = value_in(saved, "type").toStringRef(); had != type()) {
      return concat("it holds a ", had, ", but here it is a ", type());
    }
    const c10::impl::GenericList had = value_in(saved, "parameters").toList();
    const c10::impl::GenericList has = parameters();
    for (size_t i = 0; i < std::max(had.size(), has.size()); ++i) {
      const std::string before = i < had.size() ? had.get(i).toStringRef() : "none";
      const std::string now = i < has.size() ? has.get(i).toStringRef() : "none";
      if (before != now)
        return concat("its parameter ", i, " is ", before, ", but here it is ", now);
    }
    return {};
  }

  void load(const c10::IValue& saved) override {
    const PlainMode plain;
    if (!is_known_optimizer(optimizer_)) {
      load_saved(optimizer_, tensor_bytes(value_in(saved, "archive").toTensor()));
      note_loaded();
      return;
    }
    PutTogether together(optimizer_, tensor_bytes(value_in(saved, "options").toTensor()));
    const c10::impl::GenericList tensors = value_in(saved, "tensors").toList();
    for (size_t i = 0; i < together.tensors().size(); ++i) {
      together.tensors()[i].copy_(tensors.get(i).toTensor());
    }
    together.install();
    note_loaded();
  }

  void spread(const std::string& /*name*/, const ProcessSet& set) override {
    broadcast_optimizer_state(optimizer_, writer_of(set), set);
  }
  Turn turn() const override { return Turn::Optimizer; }

 private:
  std::string type() const { return c10::demangle(unwrapped_type(optimizer_).name()); }
  // The ranks that share the state give all of it to the writer, so they are in its set.
  void require_shards_within(const ProcessSet& set) const {
    const ShardedState* const sharded = sharded_state();
    const std::vector<int> ranks = sharded ? sharded->ranks_of_state() : std::vector<int>();
    const std::vector<int> all = set.ranks();
    if (ranks.empty() || (ranks.front() == all.front() &&
                          std::includes(all.begin(), all.end(), ranks.begin(), ranks.end()))) {
      return;
    }
    throw Error(
        ErrorCode::InvalidArgument,
        concat("checkpoints: the state of an optimizer is sharded over ", core::name_ranks(ranks),
               ", but the checkpoints are of ", core::name_ranks(all),
               "; give CheckpointOptions the process_set of the optimizer"));
  }
  ShardedState* sharded_state() const { return dynamic_cast<ShardedState*>(&optimizer_); }
  void note_loaded() const {
    if (ShardedState* const sharded = sharded_state()) sharded->note_state_loaded();
  }

  c10::impl::GenericList parameters() const {
    c10::impl::GenericList list(c10::AnyType::get());
    const auto& groups = std::as_const(optimizer_).param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const at::Tensor& parameter : groups[g].params()) {
        list.push_back(concat(type_and_shape(parameter, "parameter"), " of group ", g));
      }
    }
    return list;
  }

  std::string archive_of_own() const {
    const std::string bytes = archive_bytes([&](auto& archive) { optimizer_.save(archive); });
    const std::string nothing = archive_bytes([](auto& /*archive*/) {});
    if (bytes.size() <= nothing.size() && !std::as_const(optimizer_).state().empty()) {
      throw Error(ErrorCode::InvalidArgument,
                  concat(type(),
                         " keeps state but its save() writes nothing; write its own save() and "
                         "load()"));
    }
    return bytes;
  }

  torch::optim::Optimizer& optimizer_;
};

class ArchivePart : public CheckpointPart {
 public:
  ArchivePart(std::function<void(torch::serialize::OutputArchive&)> save,
              std::function<void(torch::serialize::InputArchive&)> load)
      : save_(std::move(save)), load_(std::move(load)) {}

  Fact fact(const std::string& name, const ProcessSet& /*set*/) const override {
    return {concat("\"", name, "\""), "an archive", 0};
  }
  c10::IValue take() override { return bytes_tensor(archive_bytes(save_)); }
  std::string misfit(const c10::IValue& saved) const override {
    return saved.isTensor() ? "" : "it holds no archive of that name";
  }
  void load(const c10::IValue& saved) override { loaded_ = tensor_bytes(saved.toTensor()); }
  void spread(const std::string& name, const ProcessSet& set) override {
    const std::string bytes =
        broadcast_bytes(std::exchange(loaded_, {}),
                        {.name = "checkpoint." + name, .root = writer_of(set), .process_set = set});
    on_all_ranks(
        [&] {
          torch::serialize::InputArchive archive = archive_from(bytes);
          load_(archive);
        },
        {.name = concat("checkpoint: \"", name, "\""), .process_set = set});
  }
  Turn turn() const override { return Turn::Archive; }

 private:
  std::function<void(torch::serialize::OutputArchive&)> save_;
  std::function<void(torch::serialize::InputArchive&)> load_;
  std::string loaded_;  // on the writer, until it is spread
};

}  // namespace

int writer_of(const ProcessSet& set) { return set.ranks().front(); }

c10::impl::GenericDict text_dictionary() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

c10::IValue value_in(const c10::IValue& dictionary, const std::string& name) {
  const c10::impl::GenericDict values = dictionary.toGenericDict();
  const auto found = values.find(name);
  if (found == values.end()) {
    throw Error(ErrorCode::InvalidArgument, concat("it has no \"", name, "\""));
  }
  return found->value();
}

c10::impl::GenericList list_in(const c10::IValue& dictionary, const std::string& name) {
  return value_in(dictionary, name).toList();
}

c10::IValue plain_copy(const std::string& name, const c10::IValue& value) {
  const PlainMode mode;
  plain(name, name);  // the name is a text in the file as well
  return plain(name, value);
}

bool load_there(torch::optim::Optimizer* optimizer, torch::nn::Module* module,
                const std::string& bytes) {
  if (optimizer != nullptr) load_saved(*optimizer, bytes);
  if (module != nullptr) read_module(*module, bytes);
  return optimizer != nullptr || module != nullptr;
}

at::Tensor bytes_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string tensor_bytes(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

std::string archive_bytes(const std::function<void(torch::serialize::OutputArchive&)>& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

torch::serialize::InputArchive archive_from(const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device_of_archives());
  return archive;
}

at::Tensor host_copy(const at::Tensor& tensor) {
  const PlainMode plain;
  at::Tensor copy =
      at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
  return copy.copy_(tensor);
}

std::unique_ptr<CheckpointPart> tensors_part(std::function<NamedTensors()> tensors,
                                             std::function<NamedTensors()> own) {
  return std::make_unique<TensorsPart>(std::move(tensors), std::move(own));
}

std::unique_ptr<CheckpointPart> optimizer_part(torch::optim::Optimizer& optimizer) {
  return std::make_unique<OptimizerPart>(optimizer);
}

std::unique_ptr<CheckpointPart> archive_part(
    std::function<void(torch::serialize::OutputArchive&)> save,
    std::function<void(torch::serialize::InputArchive&)> load) {
  return std::make_unique<ArchivePart>(std::move(save), std::move(load));
}

}  // namespace horon::torch_detail
