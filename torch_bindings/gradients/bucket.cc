#include "horon/torch_bindings/gradients/bucket.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/gradients/round_agreement.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

constexpr size_t kLine = 64;  // of cache
constexpr int64_t kFlagElements = RoundFlags::kCount;

// Large memory that was never written has no pages.
std::shared_ptr<std::byte> untouched_memory(size_t bytes) {
  auto* memory = static_cast<std::byte*>(std::malloc(bytes));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, [](std::byte* own) { std::free(own); }};
}

}  // namespace

GradientBucket::GradientBucket(std::string name, std::vector<size_t> slots,
                               std::span<const GradientLayout> layouts,
                               const GradientSettings& settings, bool untouched)
    : name_(std::move(name)),
      slots_(std::move(slots)),
      set_(settings.set),
      sparse_(layouts[slots_.front()].sparse),
      dtype_(layouts[slots_.front()].dtype),
      real_dtype_(layouts[slots_.front()].real_dtype()),
      has_flags_(settings.has_round_flags() && !sparse_),
      device_(layouts[slots_.front()].device) {
  for (const size_t slot : slots_) reals_ += layouts[slot].reals();
  const bool in_blocks = settings.compression == Compression::Int8 && real_dtype_ == at::kFloat;
  flags_begin_ = in_blocks ? core::round_up(reals_, ops::kInt8BlockElements) : reals_;
  const PlainMode plain;  // a .grad made in inference mode could not be used by autograd
  const size_t bytes = std::max<size_t>(1, bytes_of(reals_));  // the flags are in no tensor
  const int64_t all_reals = has_flags_ ? flags_begin_ + kFlagElements : reals_;
  const bool idle = sparse_ || untouched;
  size_t all_bytes = std::max(bytes, bytes_of(all_reals));
  const size_t narrow_at = (all_bytes + kLine - 1) / kLine * kLine;
  // On a GPU the runtime narrows: one launch for all.
  if (!idle && device_.is_cpu() && real_dtype_ == at::kFloat &&
      core::is_16_bit(settings.compression)) {
    narrow_ = {nullptr, core::narrow_type(settings.compression), settings.prescale};
    all_bytes = narrow_at + static_cast<size_t>(all_reals) * size_of(narrow_.dtype);
  }
  take_memory(all_bytes, idle);
  if (all_bytes > narrow_at) narrow_.memory = memory_.get() + narrow_at;
  auto* owner = new std::shared_ptr<std::byte>(memory_);
  at::DataPtr data(
      memory_.get(), owner,
      [](void* context) { delete static_cast<std::shared_ptr<std::byte>*>(context); }, device_);
  storage_ = c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), nullptr, false);
  std::vector<core::TensorPart> parts;
  int64_t offset = 0;
  for (const size_t slot : slots_) {
    const GradientLayout& layout = layouts[slot];
    parts_.emplace_back(layout, storage_.unsafeGetStorageImpl(), memory_.get(), narrow_, offset);
    parts.push_back({layout.compared_name(), layout.real_sizes()});
    offset += layout.elements();
  }
  auto spec =
      std::make_shared<core::EntrySpec>(gradient_spec(settings, data_type_of(real_dtype_, name_)));
  spec->parts = std::move(parts);
  spec_ = std::move(spec);
}

void GradientBucket::take_memory(size_t bytes, bool idle) {
  if (idle) {
    memory_ = untouched_memory(bytes);
  } else if (device_.is_cpu()) {
    memory_ = ops::allocate_host(bytes);
  } else {
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    memory_on_gpu_ = at::empty({static_cast<int64_t>(bytes)}, options);
    stream_of_memory_ = current_stream(device_);
    // It may have been used before in this stream, and hooks may write to it in others: the one
    // place where the host waits for the device, once for each bucket.
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeStream(*stream_of_memory_);
    auto* const memory = static_cast<std::byte*>(memory_on_gpu_.mutable_data_ptr());
    memory_ = std::shared_ptr<std::byte>(memory, [tensor = memory_on_gpu_](std::byte*) {});
  }
}

at::Tensor GradientBucket::make_view(int64_t offset, at::IntArrayRef sizes,
                                     at::IntArrayRef strides) const {
  // Not narrow() or as_strided(): zero_grad() calls detach_(), which autograd's own views refuse.
  const PlainMode plain;
  at::Tensor view = at::empty({0}, at::TensorOptions().dtype(dtype_).device(device_));
  view.set_(storage_, offset, sizes, strides);
  return view;
}

at::Tensor GradientBucket::make_view(size_t part) const {
  return make_view(parts_[part].offset(), parts_[part].sizes(), parts_[part].strides());
}

at::Tensor GradientBucket::flat() const {
  return make_view(0, {static_cast<int64_t>(bytes_of(reals_) / c10::elementSize(dtype_))}, {1});
}

void GradientBucket::name_plan(const std::string& plan) {
  if (!has_flags_) return;
  auto spec = std::make_shared<core::EntrySpec>(*spec_);
  spec->parts.resize(slots_.size());
  spec->parts.push_back({plan, {flags_begin_ - reals_ + kFlagElements}});
  spec_ = std::move(spec);
}

void GradientBucket::submit(std::vector<bool> absent, const RoundFlags& flags, bool flags_count) {
  int64_t count = reals_;
  if (has_flags_) {
    write_flags(flags);
    count = flags_begin_ + kFlagElements;
    if (!absent.empty()) {
      absent.push_back(!flags_count &&
                       std::find(absent.begin(), absent.end(), false) == absent.end());
    }
  }
  core::Submission submission;
  submission.set = set_;
  submission.name = name_;
  submission.spec = spec_;
  submission.memory = {{narrows() ? narrow_.memory : memory_.get(), memory_.get(), count}};
  submission.narrowed = narrows();
  submission.absent = std::move(absent);
  submission.keep_alive = memory_;
  if (!device_.is_cpu()) {
    note_device(submission, device_);
    if (current_stream_is_captured(device_)) submission.spec = captured(*spec_);
    try {
      submission.ready = record_current_stream(device_);
    } catch (...) {  // LibTorch's own errors: the other ranks wait for the bucket
      refuse(core::current_error());
      throw;
    }
  }
  handle = ops::runtime().submit(std::move(submission));
}

void GradientBucket::note_writer() {
  if (device_.is_cpu()) return;
  const c10::Stream stream = current_stream(device_);
  const std::lock_guard lock(writers_mutex_);
  if (std::find(writers_.begin(), writers_.end(), stream) == writers_.end()) {
    writers_.push_back(stream);
  }
}

void GradientBucket::let_current_stream_wait_for_writers() {
  const std::lock_guard lock(writers_mutex_);
  for (const c10::Stream& writer : writers_) let_current_stream_wait(writer);
  writers_.clear();
}

void GradientBucket::note_reader() const {
  if (!stream_of_memory_) return;
  if (current_stream(device_) != *stream_of_memory_) note_current_stream(memory_on_gpu_);
}

void GradientBucket::write_flags(const RoundFlags& flags) {
  if (!narrows()) {
    // What lies before them shares a block with gradients, of which one may have been NaN.
    std::memset(memory_.get() + bytes_of(reals_), 0, bytes_of(flags_begin_ - reals_));
    return flags.write(memory_.get() + bytes_of(flags_begin_), real_dtype_);
  }
  const bool half = narrow_.dtype == DataType::Float16;
  flags.write(narrow_.memory + static_cast<size_t>(reals_) * size_of(narrow_.dtype),
              half ? at::kHalf : at::kBFloat16);
}

void GradientBucket::add_flags_to(RoundFlags& flags) const {
  if (has_flags_) flags.add(memory_.get() + bytes_of(flags_begin_), real_dtype_);
}

void GradientBucket::refuse(const Error& error) {
  refusal = error;
  ops::runtime().refuse(name_, error.what(), set_);
}

}  // namespace horon::torch_detail
