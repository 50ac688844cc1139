#include "horon/torch_bindings/state/broadcast_state.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <typeinfo>
#include <unordered_map>

#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/state/optimizer_state.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/sharded_state.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {
namespace {

using core::concat;

constexpr const char* kParameters = "broadcast_parameters";
constexpr const char* kOptimizer = "broadcast_optimizer_state";
constexpr const char* kState = "broadcast_state";

using torch_detail::Fact;

// Why no broadcast from there is possible; empty if it is.
std::string fault_of(int root, const ProcessSet& set) {
  const std::vector<int> ranks = set.ranks();
  if (std::find(ranks.begin(), ranks.end(), root) != ranks.end()) return {};
  return concat("root ", root, " is not in the process set, whose ranks are ",
                core::list_ranks(ranks));
}

// Why the state can't be gathered from the ranks that share it; empty if it can.
std::string fault_of_shards(const std::vector<int>& sharing, const ProcessSet& set) {
  const std::vector<int> ranks = set.ranks();
  if (std::includes(ranks.begin(), ranks.end(), sharing.begin(), sharing.end())) return {};
  return concat("the optimizer's state is sharded over ", core::name_ranks(sharing),
                ", but the broadcast is among ", core::name_ranks(ranks),
                " only; broadcast it in the process set of the optimizer");
}

// What the ranks compare before they broadcast. A tensor that appeared before under another name is
// a tie, and ties must agree too.
struct ParameterList {
  std::vector<Fact> facts;
  NamedTensors unique;
  std::string own_error;
};

ParameterList list_parameters(const NamedTensors& named, int root, const ProcessSet& set) {
  ParameterList list;
  list.own_error = fault_of(root, set);
  list.facts.push_back({"root", std::to_string(root)});
  std::unordered_map<const void*, std::string> seen;
  torch_detail::UniqueNames names;
  for (const auto& [name, tensor] : named) {
    try {
      torch_detail::require_memory(tensor, name);
      torch_detail::check_writable(torch_detail::real_memory(tensor), name);
      if (!names.add({name, tensor})) continue;
    } catch (...) {
      if (list.own_error.empty()) list.own_error = core::current_error().what();
      continue;
    }
    const auto [tie, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), name);
    list.facts.push_back(
        {concat("tensor \"", name, "\""),
         is_new ? torch_detail::type_and_shape(tensor, name) : concat("tied to ", tie->second)});
    if (is_new) list.unique.emplace_back(name, tensor);
  }
  return list;
}

std::string type_name(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

std::vector<Fact> describe(const torch::optim::Optimizer& optimizer, int root) {
  std::vector<Fact> facts{{"root", std::to_string(root)}, {"the type", type_name(optimizer)}};
  size_t groups = 0;
  size_t parameters = 0;
  for (const auto& group : optimizer.param_groups()) {
    facts.push_back({concat("parameter group ", groups++),
                     concat("a group of ", group.params().size(), " parameters")});
    for (const at::Tensor& each : group.params()) {
      const std::string what = concat("parameter ", parameters++);
      facts.push_back({what, torch_detail::type_and_shape(each, what)});
    }
  }
  return facts;
}

std::string archive_bytes(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

std::string keeps_but_does_not_save(const torch::optim::Optimizer& optimizer) {
  return concat(type_name(optimizer),
                " keeps state but its save() writes nothing; write its own save() and load()");
}

// The optimizer as torch::save writes it; empty bytes if there is nothing to send. Text in `error`
// if it can't be saved.
std::string save_optimizer(const torch::optim::Optimizer& optimizer, std::string& error) {
  try {
    torch::serialize::OutputArchive full;
    optimizer.save(full);
    std::string bytes = archive_bytes(full);
    torch::serialize::OutputArchive nothing;
    if (bytes.size() > archive_bytes(nothing).size()) return bytes;
    if (!optimizer.state().empty()) error = keeps_but_does_not_save(optimizer);
  } catch (...) {
    error = concat(type_name(optimizer), " can't be saved: ", core::current_error().what());
  }
  return {};
}

std::string load_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  try {
    torch_detail::load_saved(optimizer, bytes);
    return {};
  } catch (...) {
    return concat(type_name(optimizer), " can't be loaded: ", core::current_error().what());
  }
}

// Broadcasts each tensor under its name, also where another one can't be: the other ranks wait for
// each of them. None is in flight when the error is thrown.
void broadcast_all(const NamedTensors& tensors, const char* call, int root, const ProcessSet& set) {
  torch_detail::Failures failures;
  std::vector<Handle> handles;
  handles.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    failures.run([&, &name = name, &tensor = tensor] {
      handles.push_back(broadcast_async_(
          tensor, {.name = concat(call, ".", name), .root = root, .process_set = set}));
    });
  }
  for (const Handle& handle : handles) failures.run([&] { handle.wait(); });
  if (failures.first()) throw Error(*failures.first());
}

// Runs `work`, and returns what it throws as text.
std::string failure_of(const torch::optim::Optimizer& optimizer, const char* what,
                       const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (...) {
    return concat(type_name(optimizer), " can't be ", what, ": ", core::current_error().what());
  }
}

// LibTorch's own optimizers: a few bytes, then tensor by tensor.
void broadcast_known(torch::optim::Optimizer& optimizer, int root, const ProcessSet& set) {
  torch_detail::TakenApart own;
  std::string error;
  if (rank() == root) {
    error = failure_of(optimizer, "saved", [&] { own = torch_detail::take_apart(optimizer); });
  }
  torch_detail::throw_together(ErrorCode::InvalidArgument, kOptimizer, error, set);
  const std::string bytes =
      broadcast_bytes(own.bytes, {.name = kOptimizer, .root = root, .process_set = set});
  std::optional<torch_detail::PutTogether> copy;
  if (rank() != root) {
    error = failure_of(optimizer, "loaded", [&] { copy.emplace(optimizer, bytes); });
  }
  torch_detail::throw_together(ErrorCode::OperationFailed, kOptimizer, error, set);
  broadcast_all(copy ? copy->tensors() : own.tensors, kOptimizer, root, set);
  if (copy) error = failure_of(optimizer, "loaded", [&] { copy->install(); });
  torch_detail::throw_together(ErrorCode::OperationFailed, kOptimizer, error, set);
}

// Other optimizers: what save() writes, load() reads.
void broadcast_saved(torch::optim::Optimizer& optimizer, int root, const ProcessSet& set) {
  std::string bytes;
  std::string error;
  if (rank() == root) bytes = save_optimizer(optimizer, error);
  torch_detail::throw_together(ErrorCode::InvalidArgument, kOptimizer, error, set);
  bytes = broadcast_bytes(bytes, {.name = kOptimizer, .root = root, .process_set = set});
  if (bytes.empty()) {
    if (!optimizer.state().empty()) error = keeps_but_does_not_save(optimizer);
    torch_detail::throw_together(ErrorCode::InvalidArgument, kOptimizer, error, set);
    return;
  }
  if (rank() != root) error = load_optimizer(optimizer, bytes);
  torch_detail::throw_together(ErrorCode::OperationFailed, kOptimizer, error, set);
}

}  // namespace

void broadcast_parameters(const NamedTensors& tensors, int root, const ProcessSet& process_set) {
  const ParameterList list = list_parameters(tensors, root, process_set);
  torch_detail::require_agreement(kParameters, list.facts, list.own_error, process_set);
  broadcast_all(list.unique, kParameters, root, process_set);
}

namespace torch_detail {

void broadcast_archived(const ArchivedState& state, int root, const ProcessSet& process_set) {
  const std::vector<Fact> facts{{"root", std::to_string(root)},
                                {"the type", c10::demangle(state.type.name())}};
  require_agreement(kState, facts, fault_of(root, process_set), process_set);
  const AgreementOptions together{.name = kState, .process_set = process_set, .worker = root};
  std::string bytes;
  const auto save = [&] {
    if (rank() != root) return;
    torch::serialize::OutputArchive archive;
    state.save(archive);
    bytes = write_archive(archive);
  };
  on_all_ranks(save, together);
  bytes = broadcast_bytes(bytes, {.name = kState, .root = root, .process_set = process_set});
  const auto load = [&] {
    if (rank() == root) return;
    torch::serialize::InputArchive archive;
    read_archive(archive, bytes);
    state.load(archive);
  };
  on_all_ranks(load, together);
}

}  // namespace torch_detail

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root,
                               const ProcessSet& process_set) {
  auto* const sharded = dynamic_cast<torch_detail::ShardedState*>(&optimizer);
  const std::vector<int> sharing =
      sharded == nullptr ? std::vector<int>() : sharded->ranks_of_state();
  std::string fault = fault_of(root, process_set);
  if (fault.empty()) fault = fault_of_shards(sharing, process_set);
  torch_detail::require_agreement(kOptimizer, describe(optimizer, root), fault, process_set);
  if (sharded != nullptr) {
    std::optional<Error> failure;
    if (std::find(sharing.begin(), sharing.end(), root) != sharing.end()) {
      try {
        sharded->consolidate_state(root);
      } catch (...) {
        failure = core::current_error();
      }
    }
    // On all ranks of the set, of which some may not share the state.
    torch_detail::throw_together(failure, {.name = kOptimizer, .process_set = process_set});
  }
  torch_detail::is_known_optimizer(optimizer) ? broadcast_known(optimizer, root, process_set)
                                              : broadcast_saved(optimizer, root, process_set);
  if (sharded != nullptr) sharded->keep_own_state();
}

}  // namespace horon
