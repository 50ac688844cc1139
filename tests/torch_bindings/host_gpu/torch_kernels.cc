// The operations on tensors of torch_device.h: LibTorch's own for the CPU, on the same memory.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "horon/tests/torch_bindings/host_gpu/torch_device.h"

namespace horon::test {
namespace {

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::CUDA};

// Memory for a tensor on this device.
c10::Allocator* memory_of_device() { return c10::GetAllocator(c10::kCUDA); }

c10::Device device_of(std::optional<c10::Device> wish) {
  if (wish && wish->has_index()) return *wish;
  return c10::impl::getDeviceGuardImpl(c10::kCUDA)->getDevice();
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> /*layout*/, std::optional<c10::Device> device,
                 std::optional<bool> /*pinned*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(device_of(device));
  return at::detail::empty_generic(size, memory_of_device(), kKeys, dtype.value_or(at::kFloat),
                                   format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                         std::optional<c10::Device> device, std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard on(device_of(device));
  return at::detail::empty_strided_generic(size, stride, memory_of_device(), kKeys,
                                           dtype.value_or(at::kFloat));
}

// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  const auto options = at::TensorOptions().dtype(tensor.scalar_type());
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), options);
}

at::Tensor from_cpu(const at::Tensor& result, int device) {
  const c10::DeviceGuard on(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  at::Tensor copy = at::detail::empty_strided_generic(
      result.sizes(), result.strides(), memory_of_device(), kKeys, result.scalar_type());
  on_cpu(copy).copy_(result);
  return copy;
}

// One call of an operator, its tensors replaced by such of the CPU.
struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;

  void run() {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(&arguments);
  }
  // For a node of a graph, which runs as often as one likes.
  void run_and_keep_arguments() const { Call(*this).run(); }
};

// What is found out about the arguments while they are replaced.
struct Replaced {
  int device = -1;
  bool writes_to_host = false;

  at::Tensor tensor(const at::Tensor& given, bool is_written) {
    if (!given.defined()) return given;
    if (given.is_cuda()) {
      if (device < 0) device = given.get_device();
      return on_cpu(given);
    }
    if (is_written) {
      writes_to_host = true;
      return given;
    }
    return given.clone();  // the caller may write to its own when the call has returned
  }

  c10::IValue value(const c10::IValue& given, bool is_written) {
    if (given.isTensor()) return tensor(given.toTensor(), is_written);
    if (given.isDevice()) return c10::Device(c10::kCPU);
    if (given.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : given.toTensorVector())
        list.push_back(tensor(each, is_written));
      return list;
    }
    if (given.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor> each : given.toOptionalTensorList()) {
        list.push_back(each ? std::optional(tensor(*each, is_written)) : std::nullopt);
      }
      return list;
    }
    return given;
  }
};

bool is_generator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  if (const auto optional = type->cast<c10::OptionalType>()) {
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  }
  return type->kind() == c10::TypeKind::GeneratorType;
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// Where LibTorch writes a result that may have another size than it has now.
bool is_output(const c10::Argument& argument) {
  return argument.kwarg_only() && is_written(argument);
}

void put(at::Tensor output, const at::Tensor& result, int device) {
  if (!output.is_cuda()) return;
  if (output.sizes() == result.sizes()) {
    on_cpu(output).copy_(result);
    return;
  }
  const at::Tensor copy = from_cpu(result, device);
  at::native::set_storage_cpu_(output, copy.storage(), 0, copy.sizes(), copy.strides());
}

// What a call gives for one of its results.
c10::IValue result_of(const c10::FunctionSchema& schema, const c10::Argument& result,
                      const torch::jit::Stack& given, const torch::jit::Stack& outputs,
                      const c10::IValue& made, int device) {
  if (is_written(result)) {
    for (size_t i = 0; i < given.size(); ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      if (!is_written(argument) || *argument.alias_info() != *result.alias_info()) continue;
      if (is_output(argument)) put(given[i].toTensor(), outputs[i].toTensor(), device);
      return given[i];
    }
  }
  TORCH_CHECK(result.alias_info() == nullptr, schema.name(), " gives a view");
  TORCH_CHECK(!made.isTensorList(), schema.name(), " gives a list of tensors");
  const bool is_tensor = made.isTensor() && made.toTensor().defined();
  return is_tensor ? c10::IValue(from_cpu(made.toTensor(), device)) : made;
}

// Every operation on a tensor of the device that is not one of those below.
void run_in_current_stream(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const torch::jit::Stack given(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  torch::jit::drop(*stack, count);
  Replaced replaced;
  auto call = std::make_shared<Call>(Call{op, {}});
  torch::jit::Stack outputs(count);  // what the call gives for several is not to be trusted
  bool only_in_place = true;
  for (size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    c10::IValue value = replaced.value(given[i], is_written(argument));
    if (is_output(argument)) {
      only_in_place = false;
      if (given[i].isTensor()) value = at::empty({0}, value.toTensor().options());
      outputs[i] = value;
    }
    if (is_generator(argument)) {
      only_in_place = false;
      value = generator_of(replaced.device);
    }
    call->arguments.push_back(std::move(value));
  }
  for (const c10::Argument& result : schema.returns()) {
    only_in_place = only_in_place && is_written(result);
  }
  const int device = std::max(replaced.device, 0);
  if (only_in_place && !replaced.writes_to_host) {
    enqueue_in_current_stream([call] { call->run_and_keep_arguments(); }, device);
    for (const c10::Argument& result : schema.returns()) {
      stack->push_back(result_of(schema, result, given, outputs, {}, device));
    }
    return;
  }
  if (replaced.writes_to_host || schema.name() == "aten::_local_scalar_dense") {
    count_torch_host_wait();
  }
  drain_current_stream(device);
  call->run();
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    stack->push_back(
        result_of(schema, schema.returns()[i], given, outputs, call->arguments.at(i), device));
  }
}

}  // namespace
}  // namespace horon::test

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&horon::test::run_in_current_stream>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &horon::test::empty);
  m.impl("empty_strided", &horon::test::empty_strided);
  // LibTorch has one for all devices, which looks for a kernel that is not there.
  m.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&horon::test::run_in_current_stream>());
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", &at::native::set_tensor_);
}
