#include "horon/torch_bindings/tensors/memory_ranges.h"

#include <cstddef>

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_strided.h>

namespace horon::torch_detail {

// at::parallel_for() is a template: in a file that is compiled without OpenMP it is a loop on this
// thread. An iterator's loop over a tensor is compiled in LibTorch, so its threads are the right
// ones whichever OpenMP that LibTorch has, and whichever compiler Horon is built with.
void for_each_range(const at::Tensor& tensor, int64_t grain,
                    c10::function_ref<void(int64_t begin, int64_t end)> work) {
  if (tensor.numel() <= grain) {
    if (tensor.numel() > 0) work(0, tensor.numel());
    return;
  }
  const auto* const first = static_cast<const std::byte*>(tensor.mutable_data_ptr());
  const auto element = static_cast<int64_t>(tensor.element_size());
  at::TensorIterator iterator = at::TensorIterator::borrowing_nullary_op(tensor);
  iterator.for_each(
      [&](char** data, const int64_t* strides, int64_t count, int64_t rows) {
        for (int64_t row = 0; row < rows; ++row) {
          // Neighbours in a row are neighbours in memory, since the tensor has no gaps.
          const auto* const at = reinterpret_cast<const std::byte*>(*data + row * strides[1]);
          const int64_t begin = (at - first) / element;
          work(begin, begin + count);
        }
      },
      grain);
}

bool lies_as(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device() == other.device() &&
         tensor.scalar_type() == other.scalar_type() && tensor.sizes() == other.sizes() &&
         tensor.strides() == other.strides() && !tensor.is_neg();
}

at::Tensor laid_out_as(const at::Tensor& other, const at::Tensor& tensor) {
  if (lies_as(tensor, other)) return tensor;
  return at::empty_strided(other.sizes(), other.strides(), other.options()).copy_(tensor);
}

}  // namespace horon::torch_detail
