#include "horon/torch_bindings/collectives/objects.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/nn/module.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

using core::concat;
using Tensors = std::vector<at::Tensor>;

// One letter for each tensor, before the tensors themselves.
constexpr char kOfGpu = 'g';
constexpr char kOfHost = 'h';
constexpr char kEndOfPlaces = '\n';
constexpr char kBeginOfList = '[';  // then the length of each part, 8 bytes, and the part

std::string places_of(const Tensors& tensors) {
  std::string places;
  for (const at::Tensor& tensor : tensors) places += tensor.is_cuda() ? kOfGpu : kOfHost;
  return places + kEndOfPlaces;
}

[[noreturn]] void throw_unlike() {
  throw std::runtime_error("ranks gave values of different types");
}

// What was on a GPU is brought to this rank's.
void put_in_places(const std::string& bytes, Tensors& tensors) {
  const bool right = bytes.find(kEndOfPlaces) == tensors.size() &&
                     std::all_of(bytes.begin(), std::next(bytes.begin(), std::ssize(tensors)),
                                 [](char place) { return place == kOfGpu || place == kOfHost; });
  if (!right) throw_unlike();
  const int gpu = c10::impl::hasDeviceGuardImpl(c10::kCUDA) ? ops::gpu()->device() : -1;
  if (gpu < 0) return;
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(gpu));
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (bytes[i] != kOfGpu) continue;
    const bool requires_grad = tensors[i].requires_grad();
    tensors[i] = tensors[i].detach().to(device).requires_grad_(requires_grad);
  }
}

size_t begin_of_content(const std::string& bytes) {
  const size_t end = bytes.find(kEndOfPlaces);
  if (end == std::string::npos) throw_unlike();
  return end + 1;
}

// On the host, and in a storage of its own: a view would bring its whole storage into an archive.
at::Tensor as_it_travels(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const bool alone =
      tensor.layout() != at::kStrided || tensor.storage().nbytes() == tensor.nbytes();
  if (alone && !tensor.is_cuda()) return tensor;
  const at::Tensor own = tensor.is_cuda() ? tensor.detach().cpu() : tensor.detach().clone();
  return own.requires_grad_(tensor.requires_grad());
}

Tensors as_they_travel(const Tensors& tensors) {
  Tensors own;
  own.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) own.push_back(as_it_travels(tensor));
  return own;
}

// In an order that a copy of the value has too.
Tensors tensors_in(const c10::IValue& value) {
  Tensors tensors;
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor()) tensors.push_back(part.toTensor());
    return false;  // go on with what is in it
  });
  return tensors;
}

// The same of what an archive holds, and the archives in it.
Tensors tensors_in(::torch::serialize::InputArchive& archive) {
  Tensors tensors;
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    for (at::Tensor& tensor : tensors_in(value)) tensors.push_back(std::move(tensor));
  }
  return tensors;
}

bool has_gpu_tensors(const std::string& places) {
  return places.find(kOfGpu) < places.find(kEndOfPlaces);
}

// A copy of the value that has other tensors.
c10::IValue with_tensors(const c10::IValue& value, const Tensors& before, const Tensors& after) {
  c10::IValue::HashIdentityIValueMap copies;
  for (size_t i = 0; i < before.size(); ++i) copies.emplace(before[i], after[i]);
  return value.deepcopy(copies);
}

}  // namespace

std::string write_tensors(const Tensors& tensors) {
  std::ostringstream stream;
  stream << places_of(tensors);
  ::torch::save(as_they_travel(tensors), stream);
  return std::move(stream).str();
}

Tensors read_tensors(const std::string& bytes) {
  const size_t begin = begin_of_content(bytes);
  Tensors tensors;
  ::torch::load(tensors, bytes.data() + begin, bytes.size() - begin);
  put_in_places(bytes, tensors);
  return tensors;
}

at::Tensor read_tensor(const std::string& bytes) {
  const Tensors tensors = read_tensors(bytes);
  if (tensors.size() != 1) throw_unlike();
  return tensors.front();
}

std::string write_ivalue(const c10::IValue& value) {
  const Tensors tensors = tensors_in(value);
  std::string bytes = places_of(tensors);
  const std::vector<char> content = ::torch::pickle_save(
      has_gpu_tensors(bytes) ? with_tensors(value, tensors, as_they_travel(tensors)) : value);
  return bytes.append(content.begin(), content.end());
}

c10::IValue read_ivalue(const std::string& bytes) {
  const auto begin = static_cast<std::ptrdiff_t>(begin_of_content(bytes));
  c10::IValue value = ::torch::pickle_load({std::next(bytes.begin(), begin), bytes.end()});
  if (!has_gpu_tensors(bytes)) return value;
  const Tensors read = tensors_in(value);
  Tensors tensors = read;
  put_in_places(bytes, tensors);
  return with_tensors(value, read, tensors);
}

std::string write_list(const std::vector<std::string>& parts) {
  std::string bytes(1, kBeginOfList);
  for (const std::string& part : parts) {
    const uint64_t length = part.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(part);
  }
  return bytes;
}

std::vector<std::string> read_list(const std::string& bytes) {
  if (bytes.empty() || bytes.front() != kBeginOfList) throw_unlike();
  std::vector<std::string> parts;
  size_t begin = 1;
  while (begin < bytes.size()) {
    uint64_t length = 0;
    if (bytes.size() - begin < sizeof(length)) throw_unlike();
    std::memcpy(&length, bytes.data() + begin, sizeof(length));
    begin += sizeof(length);
    if (bytes.size() - begin < length) throw_unlike();
    parts.push_back(bytes.substr(begin, length));
    begin += length;
  }
  return parts;
}

std::string write_archive(::torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  const std::string content = std::move(stream).str();
  ::torch::serialize::InputArchive copy;
  copy.load_from(content.data(), content.size(), device_of_archives());
  return places_of(tensors_in(copy)) + content;
}

void read_archive(::torch::serialize::InputArchive& archive, const std::string& bytes) {
  const size_t begin = begin_of_content(bytes);
  archive.load_from(bytes.data() + begin, bytes.size() - begin, c10::Device(c10::kCPU));
  const Tensors read = tensors_in(archive);
  Tensors placed = read;
  put_in_places(bytes, placed);
  for (size_t i = 0; i < read.size(); ++i) {
    if (read[i].device() != placed[i].device()) read[i].set_data(placed[i]);
  }
}

void read_module(::torch::nn::Module& module, const std::string& bytes) {
  Tensors tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  std::vector<c10::Device> devices;
  for (const at::Tensor& tensor : tensors) devices.push_back(tensor.device());
  ::torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(),
                    devices.empty() ? c10::Device(c10::kCPU) : devices.front());
  module.load(archive);
  // Brings tensors back that were not on the device of the first one.
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].device() != devices[i]) tensors[i].set_data(tensors[i].detach().to(devices[i]));
  }
}

std::string write_or_refuse(const std::string& name, const ProcessSet& set,
                            const std::function<std::string()>& write) {
  std::string reason;
  try {
    return write();
  } catch (...) {
    reason = core::current_error().what();
  }
  refuse_call(name, set, concat("object \"", name, "\" can't be serialized: ", reason));
}

void throw_unreadable(const std::string& name, int source) {
  throw Error(ErrorCode::OperationFailed,
              concat("object \"", name, "\" of rank ", source,
                     " can't be deserialized here: ", core::current_error().what()));
}

void throw_joined(const std::string& name, int source) {
  throw Error(ErrorCode::OperationFailed,
              concat("object \"", name, "\": rank ", source,
                     " has called join() and gives no more objects; call this before join()"));
}

}  // namespace horon::torch_detail
