#include "horon/torch_bindings/gradient_bucket.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ops/empty.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session.h"
#include "horon/torch_bindings/plain_mode.h"
#include "horon/torch_bindings/tensor_memory.h"

namespace horon::torch_detail {
namespace {

std::vector<int64_t> row_major_strides(at::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(1, sizes[i]);
  }
  return strides;
}

std::vector<int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return row_major_strides(parameter.sizes());
}

// Ranks that hold one parameter in different layouts would add unlike elements. The layout is part
// of the name that they compare.
std::string part_name(const GradientLayout& layout) {
  if (layout.strides == row_major_strides(layout.sizes)) return layout.name;
  return core::concat(layout.name, " (strides ", core::shape_text(layout.strides), ")");
}

uint64_t mix(uint64_t hash, std::string_view text) {  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

int64_t GradientLayout::elements() const { return core::element_count(sizes); }

int64_t GradientLayout::bytes() const {
  return elements() * static_cast<int64_t>(c10::elementSize(dtype));
}

bool GradientLayout::fits(const at::Tensor& parameter) const {
  return parameter.scalar_type() == dtype && parameter.device().is_cpu() &&
         parameter.sizes() == at::IntArrayRef(sizes) &&
         (parameter.strides() == at::IntArrayRef(strides) ||
          gradient_strides(parameter) == strides);
}

GradientLayout layout_of(const at::Tensor& parameter, const std::string& name) {
  check_tensor(parameter, name);
  if (!parameter.is_leaf()) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("parameter \"", name, "\" is the result of an operation, not a leaf"));
  }
  return {name, parameter.scalar_type(), parameter.sizes().vec(), gradient_strides(parameter),
          parameter.requires_grad()};
}

std::vector<std::vector<size_t>> plan_buckets(std::span<const GradientLayout> layouts,
                                              int64_t first_bytes, int64_t bytes) {
  struct Open {
    size_t bucket = 0;
    int64_t filled = 0;
    int64_t cap = 0;
  };
  std::vector<std::vector<size_t>> buckets;
  std::map<std::pair<at::ScalarType, bool>, Open> groups;
  for (size_t i = layouts.size(); i-- > 0;) {
    const auto [place, is_new] =
        groups.try_emplace({layouts[i].dtype, layouts[i].trained}, Open{buckets.size(), 0, 0});
    Open& open = place->second;
    if (is_new) {
      buckets.emplace_back();
      open.cap = first_bytes;
    } else if (open.filled >= open.cap) {
      open = {buckets.size(), 0, bytes};
      buckets.emplace_back();
    }
    buckets[open.bucket].push_back(i);
    open.filled += layouts[i].bytes();
    if (buckets[open.bucket].size() == core::kPartsMax) open.filled = open.cap;
  }
  return buckets;
}

GradientBucket::GradientBucket(std::string name, std::vector<size_t> slots,
                               std::span<const GradientLayout> layouts, ReduceOp op)
    : name_(std::move(name)), slots_(std::move(slots)), dtype_(layouts[slots_.front()].dtype) {
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Allreduce;
  spec->reduce_op = op;
  for (const size_t slot : slots_) {
    const GradientLayout& layout = layouts[slot];
    parts_.push_back({elements_, layout.sizes, layout.strides});
    spec->parts.push_back({part_name(layout), layout.sizes});
    elements_ += layout.elements();
  }
  const PlainMode plain;  // a .grad made in inference mode could not be used by autograd
  const size_t bytes =
      std::max<size_t>(1, static_cast<size_t>(elements_) * c10::elementSize(dtype_));
  memory_ = core::allocate_host(bytes);
  auto* owner = new std::shared_ptr<std::byte>(memory_);
  at::DataPtr data(
      memory_.get(), owner,
      [](void* context) { delete static_cast<std::shared_ptr<std::byte>*>(context); }, at::kCPU);
  storage_ = c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, false);
  spec->dtype = data_type_of(make_view(0), name_);
  spec_ = std::move(spec);
}

at::Tensor GradientBucket::make_view(size_t part) const {
  // Not narrow() or as_strided(): zero_grad() calls detach_(), which autograd's own views refuse.
  const PlainMode plain;
  at::Tensor view = at::empty({0}, at::TensorOptions().dtype(dtype_));
  view.set_(storage_, parts_[part].offset, parts_[part].sizes, parts_[part].strides);
  return view;
}

bool GradientBucket::holds(const at::Tensor& tensor, size_t part) const {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.scalar_type() == dtype_ &&
         tensor.has_storage() &&
         tensor.storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl() &&
         tensor.storage_offset() == parts_[part].offset &&
         tensor.sizes() == at::IntArrayRef(parts_[part].sizes) &&
         tensor.strides() == at::IntArrayRef(parts_[part].strides);
}

void GradientBucket::submit(std::vector<bool> absent) {
  core::Submission submission;
  submission.name = name_;
  submission.spec = spec_;
  submission.memory = {{memory_.get(), memory_.get(), elements_}};
  submission.absent = std::move(absent);
  submission.keep_alive = memory_;
  handle = core::runtime().submit(std::move(submission));
}

void GradientBucket::refuse(const std::string& text) {
  refused = true;
  core::runtime().refuse(name_, text);
}

std::string describe_plan(const std::deque<GradientBucket>& buckets,
                          std::span<const GradientLayout> layouts, ReduceOp op) {
  uint64_t hash = mix(0xcbf29ce484222325u, to_string(op));
  int64_t elements = 0;
  for (const GradientBucket& bucket : buckets) {
    hash = mix(hash, "|");
    elements += bucket.elements();
    for (const size_t slot : bucket.slots()) {
      const GradientLayout& layout = layouts[slot];
      hash = mix(hash, core::concat(layout.name, layout.dtype, core::shape_text(layout.sizes),
                                    core::shape_text(layout.strides)));
    }
  }
  return core::concat(layouts.size(), " gradients (", elements, " elements) in ", buckets.size(),
                      " buckets, ", to_string(op), ", plan ", std::hex, hash);
}

}  // namespace horon::torch_detail
