#include "horon/torch_bindings/gradients/bucket_part.h"

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/plain_float_mode.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/torch_bindings/tensors/memory_ranges.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

// With two threads and cores, 256 KiB take about half the time of one; below that nothing is
// gained.
constexpr int64_t kBytesPerThread = 128 * 1024;

}  // namespace

BucketPart::BucketPart(const GradientLayout& layout, const c10::StorageImpl* storage,
                       std::byte* memory, NarrowMemory narrow, int64_t offset)
    : storage_(storage),
      begin_(memory + offset * static_cast<int64_t>(c10::elementSize(layout.dtype))),
      elements_(layout.elements()),
      reals_of_each_(c10::isComplexType(layout.dtype) ? 2 : 1),
      offset_(offset),
      narrow_(narrow),
      device_(layout.device),
      dtype_(c10::scalarTypeToTypeMeta(layout.dtype)) {
  if (narrows()) {
    narrow_.memory += offset * reals_of_each_ * static_cast<int64_t>(size_of(narrow.dtype));
  }
  shape_.set_sizes(layout.sizes);
  shape_.set_strides(layout.strides);
}

void BucketPart::for_each_range_of(const at::Tensor& view,
                                   c10::function_ref<void(int64_t begin, int64_t end)> work) const {
  const int64_t grain = kBytesPerThread / static_cast<int64_t>(dtype_.itemsize());
  if (elements_ >= 2 * grain) return for_each_range(view, grain, work);
  if (elements_ > 0) work(0, elements_);
}

void BucketPart::copy(const at::Tensor& from, const at::Tensor& view) const {
  if (!device_.is_cpu()) {
    const PlainMode plain;
    view.copy_(from.detach());
    return;
  }
  const auto* const source = static_cast<const std::byte*>(from.const_data_ptr());
  const auto element = static_cast<int64_t>(dtype_.itemsize());
  for_each_range_of(view, [&](int64_t begin, int64_t end) {
    core::copy_bytes(begin_ + begin * element, source + begin * element,
                     static_cast<size_t>((end - begin) * element));
  });
}

void BucketPart::narrow(const at::Tensor& from, const at::Tensor& view) const {
  const auto* const source = static_cast<const float*>(from.const_data_ptr());
  const auto element = static_cast<int64_t>(size_of(narrow_.dtype));
  for_each_range_of(view, [&](int64_t begin, int64_t end) {
    const core::PlainFloatMode float_mode;  // the bits of all ranks are rounded alike
    const int64_t first = begin * reals_of_each_;
    ops::narrow(narrow_.dtype, source + first, narrow_.memory + first * element,
                end * reals_of_each_ - first, narrow_.factor);
  });
}

}  // namespace horon::torch_detail
