// Memory of the host for results whose size the ranks learn from each other.
#pragma once

#include <cstddef>
#include <memory>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

// 64-byte aligned, holding anything. Any thread.
std::shared_ptr<std::byte> allocate_bytes(size_t bytes);
// The same for memory that is released soon: large blocks are reused and come from memory that the
// ranks of the host share, if there is some; malloc() reuses small ones itself.
std::shared_ptr<std::byte> allocate_reused_bytes(size_t bytes);

// A row-major tensor of this shape in memory that it keeps.
at::Tensor tensor_in(std::shared_ptr<std::byte> memory, at::IntArrayRef shape,
                     const at::TensorOptions& options);

}  // namespace horon::torch_detail
