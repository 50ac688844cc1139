// Where one gradient lies in the memory of its bucket.
//
// The hooks compare and copy each gradient of each step, so this keeps what they need in one place
// and asks LibTorch for nothing but the fields of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/SizesAndStrides.h>
#include <c10/util/FunctionRef.h>

#include "horon/core/base/dtype.h"
#include "horon/torch_bindings/gradients/plan.h"

namespace horon::torch_detail {

// The memory of a bucket for gradients that travel in 16 bits.
struct NarrowMemory {
  std::byte* memory = nullptr;  // null: they travel as they are
  DataType dtype = DataType::BFloat16;
  double factor = 1;  // that they are multiplied by before they are rounded
};

class BucketPart {
 public:
  BucketPart() = default;  // of no bucket: holds no tensor
  // The bucket begins at `memory` and `narrow`, `storage` is the one of tensors over it; `offset`
  // in elements.
  BucketPart(const GradientLayout& layout, const c10::StorageImpl* storage, std::byte* memory,
             NarrowMemory narrow, int64_t offset);

  int64_t offset() const { return offset_; }
  at::IntArrayRef sizes() const { return shape_.sizes_arrayref(); }
  at::IntArrayRef strides() const { return shape_.strides_arrayref(); }

  // Is this tensor exactly this memory (by storage, offset, dtype, sizes and strides)?
  bool holds(const at::Tensor& tensor) const {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    return storage_ != nullptr && impl.unsafe_storage().unsafeGetStorageImpl() == storage_ &&
           impl.storage_offset() == offset_ && has_this_shape(impl);
  }
  // Is it on the device of the bucket, with the same dtype, sizes and strides, so that its bytes
  // are its values?
  bool lies_alike(const at::Tensor& tensor) const {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    return impl.unsafe_storage() && impl.layout() == at::kStrided && is_here(impl) &&
           has_this_shape(impl) && !impl.key_set().has_any(kNotItsValues);
  }
  // Copies the values of a tensor that lies alike; a large one by several threads, on a GPU in the
  // current stream. `view` holds this memory.
  void copy(const at::Tensor& from, const at::Tensor& view) const;
  // The same, scaled and rounded into the narrow memory, which there must be.
  void narrow(const at::Tensor& from, const at::Tensor& view) const;
  bool narrows() const { return narrow_.memory != nullptr; }

 private:
  bool is_here(const c10::TensorImpl& impl) const {
    return device_.is_cpu() ? impl.is_cpu() : impl.device() == device_;
  }
  void for_each_range_of(const at::Tensor& view,
                         c10::function_ref<void(int64_t begin, int64_t end)> work) const;
  bool has_this_shape(const c10::TensorImpl& impl) const {
    return impl.dtype() == dtype_ && are_equal(impl.sizes(), sizes()) &&
           are_equal(impl.strides(), strides());
  }
  // For the few numbers of a shape a loop is faster than a call of memcmp().
  static bool are_equal(at::IntArrayRef a, at::IntArrayRef b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

  // The memory of lazily negated, conjugated and zero tensors does not hold their values.
  static constexpr c10::DispatchKeySet kNotItsValues{
      c10::DispatchKey::Negative, c10::DispatchKey::Conjugate, c10::DispatchKey::ZeroTensor};

  const c10::StorageImpl* storage_ = nullptr;
  std::byte* begin_ = nullptr;
  int64_t elements_ = 0;
  int64_t reals_of_each_ = 1;  // 2 of complex numbers
  int64_t offset_ = 0;
  NarrowMemory narrow_;  // of this part
  c10::Device device_{c10::kCPU};
  caffe2::TypeMeta dtype_;
  c10::impl::SizesAndStrides shape_;
};

}  // namespace horon::torch_detail
