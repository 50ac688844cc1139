#include "horon/torch_bindings/broadcast_state.h"

#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <sstream>
#include <typeinfo>
#include <unordered_map>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session.h"
#include "horon/torch_bindings/collectives.h"
#include "horon/torch_bindings/manifest.h"
#include "horon/torch_bindings/tensor_memory.h"

namespace horon {
namespace {

using core::concat;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

constexpr const char* kParameters = "broadcast_parameters";
constexpr const char* kOptimizer = "broadcast_optimizer_state";

void check_root(const char* call, int root) {
  if (root >= 0 && root < size()) return;
  throw Error(ErrorCode::InvalidArgument,
              concat(call, ": root ", root, " is no rank of 0 .. ", size() - 1));
}

// The part before the backtrace, on one line.
std::string first_line(const std::exception& error) {
  const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = from_torch ? from_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// One line per tensor; a tensor that appeared before under another name is a tie, and ties must
// agree too.
struct ParameterList {
  std::vector<std::string> lines;
  NamedTensors unique;
  std::string own_error;
};

ParameterList list_parameters(const NamedTensors& named, int root) {
  ParameterList list;
  list.lines.push_back(concat("root ", root));
  std::unordered_map<const void*, std::string> seen;
  for (const auto& [name, tensor] : named) {
    try {
      torch_detail::check_writable(tensor, name);
    } catch (const Error& error) {
      if (list.own_error.empty()) list.own_error = error.what();
      list.lines.push_back(name);
      continue;
    }
    const auto [tie, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), name);
    list.lines.push_back(is_new ? concat(name, " ",
                                         to_string(torch_detail::data_type_of(tensor, name)), " ",
                                         core::shape_text(tensor.sizes()))
                                : concat(name, " tied to ", tie->second));
    if (is_new) list.unique.emplace_back(name, tensor);
  }
  return list;
}

template <class Dict>
void append(NamedTensors& to, const Dict& named) {
  for (const auto& item : named) to.emplace_back(item.key(), item.value());
}

std::string type_name(const torch::optim::Optimizer& optimizer) {
  const char* mangled = typeid(optimizer).name();
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> readable(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return status == 0 ? readable.get() : mangled;
}

std::vector<std::string> describe(const torch::optim::Optimizer& optimizer, int root) {
  std::vector<std::string> lines{concat("root ", root), type_name(optimizer)};
  for (const auto& group : optimizer.param_groups()) {
    lines.push_back(concat("a group of ", group.params().size(), " parameters"));
  }
  return lines;
}

std::string archive_bytes(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
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
    if (!optimizer.state().empty()) {
      error = concat(type_name(optimizer),
                     " keeps state but saves nothing; it needs its own save() "
                     "and load()");
    }
  } catch (const std::exception& e) {
    error = concat(type_name(optimizer), " can't be saved: ", first_line(e));
  }
  return {};
}

std::string load_optimizer(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  try {
    std::istringstream stream(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    // load() adds to what is there and drops nothing.
    optimizer.state().clear();
    optimizer.load(archive);
    return {};
  } catch (const std::exception& e) {
    return concat(type_name(optimizer), " can't be loaded: ", first_line(e));
  }
}

}  // namespace

void broadcast_parameters(const NamedTensors& named, int root) {
  check_root(kParameters, root);
  ParameterList list = list_parameters(named, root);
  torch_detail::throw_together(ErrorCode::InvalidArgument, kParameters, list.own_error);
  torch_detail::require_same_lines(kParameters, list.lines, root);
  std::vector<Handle> handles;
  handles.reserve(list.unique.size());
  for (const auto& [name, tensor] : list.unique) {
    handles.push_back(
        broadcast_async_(tensor, {.name = concat(kParameters, ".", name), .root = root}));
  }
  for (const Handle& handle : handles) handle.wait();
}

void broadcast_parameters(std::initializer_list<std::pair<std::string, at::Tensor>> named,
                          int root) {
  broadcast_parameters(NamedTensors(named), root);
}

void broadcast_parameters(const torch::OrderedDict<std::string, at::Tensor>& named, int root) {
  NamedTensors list;
  append(list, named);
  broadcast_parameters(list, root);
}

void broadcast_parameters(const torch::nn::Module& module, int root) {
  NamedTensors list;
  append(list, module.named_parameters());
  append(list, module.named_buffers());
  broadcast_parameters(list, root);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root) {
  check_root(kOptimizer, root);
  torch_detail::require_same_lines(kOptimizer, describe(optimizer, root), root);
  std::string bytes;
  std::string error;
  if (rank() == root) bytes = save_optimizer(optimizer, error);
  torch_detail::throw_together(ErrorCode::InvalidArgument, kOptimizer, error);
  bytes = torch_detail::broadcast_bytes(kOptimizer, bytes, root);
  if (bytes.empty()) return;
  error.clear();
  if (rank() != root) error = load_optimizer(optimizer, bytes);
  torch_detail::throw_together(ErrorCode::OperationFailed, kOptimizer, error);
}

}  // namespace horon
