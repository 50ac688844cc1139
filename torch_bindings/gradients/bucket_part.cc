#include "horon/torch_bindings/gradients/bucket_part.h"

#include <cstring>

#include "horon/torch_bindings/tensors/memory_ranges.h"

namespace horon::torch_detail {
namespace {

// With two threads and cores, 256 KiB take about half the time of one; below that nothing is
// gained.
constexpr int64_t kBytesPerThread = 128 * 1024;

}  // namespace

BucketPart::BucketPart(const GradientLayout& layout, const c10::StorageImpl* storage,
                       std::byte* memory, int64_t offset)
    : storage_(storage),
      begin_(memory + offset * static_cast<int64_t>(c10::elementSize(layout.dtype))),
      bytes_(layout.bytes()),
      offset_(offset),
      dtype_(c10::scalarTypeToTypeMeta(layout.dtype)) {
  shape_.set_sizes(layout.sizes);
  shape_.set_strides(layout.strides);
}

void BucketPart::copy(const at::Tensor& from, const at::Tensor& view) const {
  const auto* const source = static_cast<const std::byte*>(from.const_data_ptr());
  if (bytes_ < 2 * kBytesPerThread) {
    if (bytes_ > 0) std::memcpy(begin_, source, static_cast<size_t>(bytes_));
    return;
  }
  const auto element = static_cast<int64_t>(dtype_.itemsize());
  for_each_range(view, kBytesPerThread / element, [&](int64_t begin, int64_t end) {
    std::memcpy(begin_ + begin * element, source + begin * element,
                static_cast<size_t>((end - begin) * element));
  });
}

}  // namespace horon::torch_detail
