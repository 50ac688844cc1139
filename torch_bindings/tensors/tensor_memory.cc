#include "horon/torch_bindings/tensors/tensor_memory.h"

#include <optional>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::torch_detail {
namespace {

using core::concat;

[[noreturn]] void refuse(std::string_view name, const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat("tensor \"", name, "\": ", why));
}

std::optional<DataType> find_data_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::Float32;
    case at::kDouble:
      return DataType::Float64;
    case at::kHalf:
      return DataType::Float16;
    case at::kBFloat16:
      return DataType::BFloat16;
    case at::kChar:
      return DataType::Int8;
    case at::kByte:
      return DataType::UInt8;
    case at::kShort:
      return DataType::Int16;
    case at::kInt:
      return DataType::Int32;
    case at::kLong:
      return DataType::Int64;
    case at::kBool:
      return DataType::Bool;
    default:
      return std::nullopt;
  }
}

std::optional<at::ScalarType> integer_for(at::ScalarType type) {
  switch (type) {
    case at::kUInt16:
      return at::kShort;
    case at::kUInt32:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    default:
      return c10::isFloat8Type(type) ? std::optional(at::kByte) : std::nullopt;
  }
}

// Outside a session nobody knows the device of this rank.
void check_device(c10::Device device, std::string_view name) {
  if (!device.is_cuda()) {
    refuse(name, concat("is on ", device, "; collectives take tensors on the CPU and on cuda"));
  }
  if (!is_initialized()) return;
  const std::shared_ptr<ops::JobGpu> gpu = ops::gpu();
  if (gpu->device() < 0) {
    refuse(name, concat("is on ", device, ", but rank ", rank(), " has no GPU (", gpu->why_not(),
                        "); move it to the CPU"));
  }
  if (device.index() != gpu->device()) {
    refuse(name, concat("is on ", device, ", but rank ", rank(), " uses cuda:", gpu->device(),
                        " (horon::device()); move it there"));
  }
}

}  // namespace

void require_memory(const at::Tensor& tensor, std::string_view name) {
  if (!tensor.defined()) return;
  if (tensor.is_nested()) {
    refuse(name, "is nested; collectives take dense tensors: give its tensors as a group");
  }
  if (!tensor.unsafeGetTensorImpl()->is_python_dispatch()) return;
  if (!tensor.has_storage()) return;
  // Its data pointer is null; asking for it in the usual way is an error of LibTorch's for some
  // tensors.
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  if (storage._mutable_data_ptr_no_checks() != nullptr) return;
  refuse(name, concat("wraps other tensors, as a DTensor does, and has no memory of its own; ",
                      "give the tensor inside (to_local() or full_tensor() of a DTensor)"));
}

void check_tensor(const at::Tensor& tensor, std::string_view name) {
  if (!tensor.defined()) refuse(name, "is undefined");
  require_memory(tensor, name);
  if (tensor.layout() != at::kStrided) {
    refuse(name, concat("has layout ", tensor.layout(), "; collectives take dense tensors"));
  }
  if (!tensor.is_cpu()) check_device(tensor.device(), name);
  (void)data_type_of(tensor, name);
  if (!tensor.has_storage()) refuse(name, "has no storage");
  if (tensor.numel() > 0 && !tensor._is_zerotensor() && tensor.storage().nbytes() == 0) {
    refuse(name,
           "has elements, but its memory has been freed (its storage resized to 0); give it before "
           "that");
  }
}

void check_writable(const at::Tensor& tensor, std::string_view name) {
  check_tensor(tensor, name);
  if (tensor._is_zerotensor()) {
    refuse(name,
           "is a ZeroTensor, which has no memory of its own and can't be written; clone() it");
  }
  if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
    refuse(name,
           "has several elements at one address (expanded?) and can't be written; clone() it");
  }
}

DataType data_type_of(at::ScalarType type, std::string_view name) {
  const std::optional<DataType> dtype = find_data_type(type);
  if (!dtype) {
    refuse(name, concat("has dtype ", type, ", which is not supported; convert it to float16, ",
                        "bfloat16, float32, float64, int8, int16, int32, int64, uint8 or bool"));
  }
  return *dtype;
}

DataType data_type_of(const at::Tensor& tensor, std::string_view name) {
  return data_type_of(tensor.scalar_type(), name);
}

at::ScalarType scalar_type_of(DataType dtype) {
  switch (dtype) {
    case DataType::Float32:
      return at::kFloat;
    case DataType::Float64:
      return at::kDouble;
    case DataType::Float16:
      return at::kHalf;
    case DataType::BFloat16:
      return at::kBFloat16;
    case DataType::Int8:
      return at::kChar;
    case DataType::UInt8:
      return at::kByte;
    case DataType::Int16:
      return at::kShort;
    case DataType::Int32:
      return at::kInt;
    case DataType::Int64:
      return at::kLong;
    case DataType::Bool:
      return at::kBool;
  }
  HORON_CHECK(false, "unknown dtype");
  return at::kFloat;
}

at::Tensor row_major(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_neg();
  return plain._is_zerotensor() ? plain.clone(at::MemoryFormat::Contiguous) : plain.contiguous();
}

std::optional<at::ScalarType> type_in_disguise(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return c10::isComplexType(type) || integer_for(type) ? std::optional(type) : std::nullopt;
}

at::Tensor real_view(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return tensor;
  const at::Tensor plain = tensor.detach();
  if (plain.is_complex()) return at::view_as_real(plain.resolve_conj());
  const std::optional<at::ScalarType> integer = integer_for(plain.scalar_type());
  return integer ? plain.view(*integer) : plain;
}

at::Tensor real_memory(const at::Tensor& tensor) {
  return real_view(tensor.defined() && tensor.is_conj() ? tensor.detach().conj() : tensor);
}

at::Tensor undisguised(const at::Tensor& real, std::optional<at::ScalarType> type) {
  if (!type) return real;
  return (c10::isComplexType(*type) ? at::view_as_complex(real) : real.view(*type)).detach();
}

std::string type_and_shape(const at::Tensor& tensor, std::string_view name) {
  std::string as = tensor.is_complex() ? " (complex)" : "";
  if (is_moved_only(tensor)) as = concat(" (", tensor.scalar_type(), ")");
  return concat(to_string(data_type_of(real_memory(tensor), name)), as, " ",
                core::shape_text(tensor.sizes()));
}

at::Tensor row_major_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

bool is_row_major(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor.is_conj() &&
         !tensor._is_zerotensor();
}

bool travels_as_it_is(const at::Tensor& tensor) {
  return !type_in_disguise(tensor) && is_row_major(tensor);
}

void mark_written(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

std::optional<c10::Device> device_of_archives() {
  const bool has_gpus = c10::impl::hasDeviceGuardImpl(c10::kCUDA) &&
                        c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() > 0;
  return has_gpus ? std::nullopt : std::optional(c10::Device(c10::kCPU));
}

core::MemoryPart make_part(const at::Tensor& input, const at::Tensor& output) {
  core::MemoryPart part;
  part.count = input.numel();
  if (output.defined()) part.output = static_cast<std::byte*>(output.mutable_data_ptr());
  // In place: one address for both, also where asking for a writable one has just moved the data
  // (copy on write).
  part.input =
      output.is_same(input) ? part.output : static_cast<const std::byte*>(input.const_data_ptr());
  return part;
}

}  // namespace horon::torch_detail
