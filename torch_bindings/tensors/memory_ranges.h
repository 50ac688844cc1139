// Work on the memory of one large tensor, shared out to the threads that LibTorch's own operations
// use (OMP_NUM_THREADS, at::set_num_threads()), and on that of tensors that lie alike.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace horon::torch_detail {

// Calls work(begin, end) for ranges of elements that together are the tensor's memory, in the order
// of memory. With more than `grain` elements, several threads share the ranges, at most one thread
// for each `grain`. The tensor is in host memory, without gaps and overlaps. `work` uses no tensors
// and does not throw. Returns when all is done.
void for_each_range(const at::Tensor& tensor, int64_t grain,
                    c10::function_ref<void(int64_t begin, int64_t end)> work);

// Whether the two lie alike in memory: element i of the one belongs to element i of the other.
// Strided, and of one device and dtype.
bool lies_as(const at::Tensor& tensor, const at::Tensor& other);
// `tensor` if it lies as the other, which has its shape, else a copy that does.
at::Tensor laid_out_as(const at::Tensor& other, const at::Tensor& tensor);

}  // namespace horon::torch_detail
