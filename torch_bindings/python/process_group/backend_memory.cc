#include <memory>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/collectives/result_memory.h"
#include "horon/torch_bindings/python/process_group/backend.h"

namespace horon::python::process_group {

at::Tensor HoronBackend::allocateTensor(long size, at::TensorOptions options) {  // NOLINT
  if (size < 0) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("allocate_tensor(): a size of ", size, " is below 0"));
  }
  if (!options.device().is_cpu() || size == 0) return at::empty({size}, options);
  const size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
  auto holder =
      std::make_unique<std::shared_ptr<std::byte>>(torch_detail::allocate_reused_bytes(bytes));
  std::byte* const data = holder->get();
  c10::DataPtr memory(
      data, holder.release(),
      [](void* held) { delete static_cast<std::shared_ptr<std::byte>*>(held); }, at::kCPU);
  // A tensor of torch's can be resized, and so can this one: if it grows, it gets plain memory.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory),
                             c10::GetCPUAllocator(), true);
  return at::empty({0}, options).set_(storage, 0, {size});
}

}  // namespace horon::python::process_group
