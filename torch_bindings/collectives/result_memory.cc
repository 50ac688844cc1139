#include "horon/torch_bindings/collectives/result_memory.h"

#include <new>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "horon/core/base/error.h"
#include "horon/ops/session/running_job.h"

namespace horon::torch_detail {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

std::shared_ptr<std::byte> allocate_bytes(size_t bytes) {
  const auto free = [](std::byte* memory) { ::operator delete(memory, kAlignment); };
  return {static_cast<std::byte*>(::operator new(bytes, kAlignment)), free};
}

std::shared_ptr<std::byte> allocate_reused_bytes(size_t bytes) {
  constexpr size_t kLong = 64 << 10;
  if (bytes < kLong) return allocate_bytes(bytes);
  std::shared_ptr<std::byte> memory;
  try {
    memory = ops::allocate_host_reused(bytes);
  } catch (const Error&) {  // no shared memory is left, or no job
  }
  return memory != nullptr ? memory : allocate_bytes(bytes);
}

at::Tensor tensor_in(std::shared_ptr<std::byte> memory, at::IntArrayRef shape,
                     const at::TensorOptions& options) {
  std::byte* const data = memory.get();
  const auto keeps = [memory = std::move(memory)](void*) {};
  return at::from_blob(data, shape, keeps, options);
}

}  // namespace horon::torch_detail
