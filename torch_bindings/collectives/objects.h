// C++ values from rank to rank: configurations, vocabularies, metrics, small tensors.
//
//   config = horon::broadcast_object(config, {.root = 0});            // std::string
//   std::vector<double> times = horon::allgather_object(seconds);
//   std::vector<std::vector<at::Tensor>> all = horon::gather_object(tensors, {.root = 0});
//   const std::string shard = horon::scatter_object(shards, {.root = 0});   // one for each rank
//
// A value is one of these, the same type on all ranks:
//  - std::string: its bytes, any bytes;
//  - a number, bool or enum;
//  - at::Tensor, std::vector<at::Tensor>: shapes and dtypes may differ from rank to rank. A view
//    sends its own elements only;
//  - std::vector of such values, of any lengths, also of vectors;
//  - c10::IValue with what torch::pickle_save takes: lists, dictionaries, tuples of such values;
//  - a module (a ModuleHolder or a shared_ptr to a module), for broadcast only: the root's
//    parameters and buffers are put into the module that is given;
//  - any other type that torch::save and torch::load take and that has a default constructor.
//
// Where tensors arrive: GPU tensors on the GPU of the receiving rank (on the CPU if it has none),
// CPU tensors on the CPU, also within an IValue. Parameters and buffers stay on the devices that
// they have in the given module, whatever the root's devices are. Tensors in values of other types
// arrive on the CPU.
//
// Values are written to bytes and read again: for tensors that matter, allreduce() and
// broadcast_parameters() are faster. Calls, names and threads as in bytes.h. Throws Error as
// collectives do; InvalidArgument, on all ranks, if a value can't be written; OperationFailed if
// its bytes can't be read.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/nn/pimpl.h>
#include <torch/serialize.h>

#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace torch::nn {
class Module;
}

namespace horon {
namespace torch_detail {

template <class T>
inline constexpr bool kIsNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class T>
struct IsList : std::false_type {};
template <class T>
struct IsList<std::vector<T>> : std::true_type {};
template <class T>
struct IsModule : std::is_base_of<::torch::detail::ModuleHolderIndicator, T> {};
template <class T>
struct IsModule<std::shared_ptr<T>> : std::is_base_of<::torch::nn::Module, T> {};

// Tensors, and values that hold tensors, are written as copies on the host. Reading puts them on
// the devices that the top of this file names.
std::string write_tensors(const std::vector<at::Tensor>& tensors);
std::vector<at::Tensor> read_tensors(const std::string& bytes);
at::Tensor read_tensor(const std::string& bytes);
std::string write_ivalue(const c10::IValue& value);
c10::IValue read_ivalue(const std::string& bytes);
// The same for an archive: what reads from it gets tensors on those devices.
std::string write_archive(::torch::serialize::OutputArchive& archive);
void read_archive(::torch::serialize::InputArchive& archive, const std::string& bytes);
// A list of byte strings in one.
std::string write_list(const std::vector<std::string>& parts);
std::vector<std::string> read_list(const std::string& bytes);
// Reads into a module what torch::save() has written.
void read_module(::torch::nn::Module& module, const std::string& bytes);

// Writes at least one byte: zero bytes mean that the rank has joined.
template <class T>
std::string write_object(const T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    return '"' + value;
  } else if constexpr (kIsNumber<T>) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    return write_tensors({value});
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return write_tensors(value);
  } else if constexpr (IsList<T>::value) {
    static_assert(!IsModule<typename T::value_type>::value, "broadcast each module by itself");
    std::vector<std::string> parts;
    for (const typename T::value_type& part : value) parts.push_back(write_object(part));
    return write_list(parts);
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    return write_ivalue(value);
  } else {
    std::ostringstream stream;
    ::torch::save(value, stream);
    return std::move(stream).str();
  }
}

// `into`: the value that the caller gave; modules are read into it.
template <class T>
T read_object(const std::string& bytes, [[maybe_unused]] const T& into) {
  if constexpr (std::is_same_v<T, std::string>) {
    return bytes.substr(1);
  } else if constexpr (kIsNumber<T>) {
    if (bytes.size() != sizeof(T)) throw std::runtime_error("ranks gave values of different types");
    T value{};
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    return read_tensor(bytes);
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    return read_tensors(bytes);
  } else if constexpr (IsList<T>::value) {
    T value;
    for (const std::string& part : read_list(bytes)) {
      value.push_back(read_object(part, typename T::value_type()));
    }
    return value;
  } else if constexpr (std::is_same_v<T, c10::IValue>) {
    return read_ivalue(bytes);
  } else if constexpr (IsModule<T>::value) {
    if (!into) throw std::runtime_error("there is no module to read it into");
    T module = into;
    read_module(*module, bytes);
    return module;
  } else {
    T value{};
    ::torch::load(value, bytes.data(), bytes.size(), c10::Device(c10::kCPU));
    return value;
  }
}

// Returns what `write` returns. If it throws: Error(InvalidArgument) here, and on the ranks that
// wait in the collective `name`.
std::string write_or_refuse(const std::string& name, const ProcessSet& set,
                            const std::function<std::string()>& write);
// For a catch block: throws what was caught as an Error(OperationFailed).
[[noreturn]] void throw_unreadable(const std::string& name, int source);
// Error(OperationFailed): the rank called join().
[[noreturn]] void throw_joined(const std::string& name, int source);

template <class T>
T read_or_fail(const std::string& name, int source, const std::string& bytes, const T& into) {
  if (bytes.empty()) throw_joined(name, source);
  try {
    return read_object<T>(bytes, into);
  } catch (const std::exception&) {
    throw_unreadable(name, source);
  }
}

template <class T>
std::vector<T> read_objects(const std::string& name, const ProcessSet& set,
                            const std::vector<std::string>& bytes, const T& like) {
  const std::vector<int> ranks = set.ranks();
  std::vector<T> values;
  for (size_t i = 0; i < bytes.size(); ++i) {
    values.push_back(read_or_fail<T>(name, ranks[i], bytes[i], like));
  }
  return values;
}

}  // namespace torch_detail

// The root's value. Unnamed: "broadcast_object.noname.N".
template <class T>
T broadcast_object(const T& value, const ObjectOptions& options = {}) {
  namespace detail = torch_detail;
  const ProcessSet& set = options.process_set;
  const detail::BlockingCallName name(options.name, "broadcast_object", set.id());
  ObjectOptions named = options;
  named.name = name.get();
  if (rank() == options.root) {
    const auto write = [&] { return detail::write_object(value); };
    // The size is the first thing that the others wait for.
    (void)broadcast_bytes(detail::write_or_refuse(named.name + ".size", set, write), named);
    return value;
  }
  const std::string bytes = broadcast_bytes({}, named);
  return detail::read_or_fail<T>(named.name, options.root, bytes, value);
}

// The value of each rank of the set, in the order of ranks. Unnamed: "allgather_object.noname.N".
template <class T>
std::vector<T> allgather_object(const T& value, const ObjectOptions& options = {}) {
  static_assert(!torch_detail::IsModule<T>::value, "gather a module's tensors instead");
  namespace detail = torch_detail;
  const ProcessSet& set = options.process_set;
  const detail::BlockingCallName name(options.name, "allgather_object", set.id());
  ObjectOptions named = options;
  named.name = name.get();
  const auto write = [&] { return detail::write_object(value); };
  return detail::read_objects<T>(
      named.name, set, allgather_bytes(detail::write_or_refuse(named.name, set, write), named),
      value);
}

// As allgather_object() on the root; other ranks get an empty vector. Unnamed:
// "gather_object.noname.N".
template <class T>
std::vector<T> gather_object(const T& value, const ObjectOptions& options = {}) {
  static_assert(!torch_detail::IsModule<T>::value, "gather a module's tensors instead");
  namespace detail = torch_detail;
  const ProcessSet& set = options.process_set;
  const detail::BlockingCallName name(options.name, "gather_object", set.id());
  ObjectOptions named = options;
  named.name = name.get();
  const auto write = [&] { return detail::write_object(value); };
  return detail::read_objects<T>(
      named.name, set, gather_bytes(detail::write_or_refuse(named.name, set, write), named), value);
}

// Returns this rank's value. The root gives one for each rank of the set, in the order of ranks.
// Other ranks' arguments are ignored: scatter_object<std::string>({}). Throws
// Error(InvalidArgument) on all ranks if the number of values is another. Unnamed:
// "scatter_object.noname.N".
template <class T>
T scatter_object(const std::vector<T>& values, const ObjectOptions& options = {}) {
  static_assert(!torch_detail::IsModule<T>::value, "scatter a module's tensors instead");
  namespace detail = torch_detail;
  const ProcessSet& set = options.process_set;
  const detail::BlockingCallName name(options.name, "scatter_object", set.id());
  ObjectOptions named = options;
  named.name = name.get();
  std::vector<std::string> parts;
  if (rank() == options.root) {
    const auto write_all = [&] {
      for (const T& value : values) parts.push_back(detail::write_object(value));
      return std::string();
    };
    (void)detail::write_or_refuse(named.name, set, write_all);
  }
  return detail::read_or_fail<T>(named.name, options.root, scatter_bytes(parts, named), T());
}

}  // namespace horon
