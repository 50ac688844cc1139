#include "horon/torch_bindings/gradients/bucket.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
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
                               const GradientSettings& settings, std::vector<int64_t> shares,
                               bool untouched)
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
  const size_t second_at = core::whole_cache_lines(all_bytes);  // a stretch behind all this
  // On a GPU the runtime narrows: one launch for all. But a reducescatter has no compression.
  const bool narrows_here = !idle && (device_.is_cpu() || !shares.empty()) &&
                            real_dtype_ == at::kFloat && core::is_16_bit(settings.compression);
  if (narrows_here) {
    narrow_ = {nullptr, core::narrow_type(settings.compression), settings.prescale};
    all_bytes = second_at + static_cast<size_t>(all_reals) * size_of(narrow_.dtype);
  }
  size_t shown_bytes = bytes;  // by tensors
  if (!shares.empty()) {
    const auto own = shares.begin() + static_cast<ptrdiff_t>(settings.owners->own_member());
    share_ = {std::accumulate(shares.begin(), own, int64_t{0}), *own,
              core::whole_cache_lines(all_bytes)};
    const size_t element = narrows_here ? size_of(narrow_.dtype) : c10::elementSize(real_dtype_);
    shown_bytes = all_bytes = share_->result_at + static_cast<size_t>(*own) * element;
  }
  take_memory(all_bytes, idle);
  input_ = memory_.get() + (narrows_here ? second_at : 0);
  if (narrows_here && device_.is_cpu()) narrow_.memory = input_;
  auto* owner = new std::shared_ptr<std::byte>(memory_);
  at::DataPtr data(
      memory_.get(), owner,
      [](void* context) { delete static_cast<std::shared_ptr<std::byte>*>(context); }, device_);
  storage_ =
      c10::Storage(c10::Storage::use_byte_size_t(), shown_bytes, std::move(data), nullptr, false);
  lay_out(layouts, settings, std::move(shares));
}

// Lays out the gradients in the memory of the bucket, and as parts of its spec.
void GradientBucket::lay_out(std::span<const GradientLayout> layouts,
                             const GradientSettings& settings, std::vector<int64_t> shares) {
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
  if (share_) share_out(*spec, std::move(shares));
  spec_ = std::move(spec);
}

void GradientBucket::share_out(core::EntrySpec& spec, std::vector<int64_t> shares) {
  at::ScalarType travels = real_dtype_;
  if (input_ != memory_.get()) {
    travels = scalar_type_of(narrow_.dtype);
    spec.dtype = narrow_.dtype;
    spec.compression = Compression::None;
    spec.prescale = 1;                                    // they have been multiplied
    share_->factor = std::exchange(spec.postscale, 1.0);  // behind the rounding to 16 bits
  }
  spec.kind = CollectiveKind::Reducescatter;
  spec.piece_bytes = 0;
  spec.as_one = true;
  spec.splits = std::move(shares);
  const auto view = [this](at::ScalarType dtype, size_t begin, int64_t count) {
    return make_view(dtype, static_cast<int64_t>(begin / c10::elementSize(dtype)), {count}, {1});
  };
  share_->values = make_view(real_dtype_, share_->begin, {share_->count}, {1});
  share_->result = view(travels, share_->result_at, share_->count);
  if (travels == real_dtype_ || narrows()) return;
  share_->all = view(real_dtype_, 0, reals_);
  share_->all_narrow = view(travels, static_cast<size_t>(input_ - memory_.get()), reals_);
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

at::Tensor GradientBucket::make_view(at::ScalarType dtype, int64_t offset, at::IntArrayRef sizes,
                                     at::IntArrayRef strides) const {
  // Not narrow() or as_strided(): zero_grad() calls detach_(), which autograd's own views refuse.
  const PlainMode plain;
  at::Tensor view = at::empty({0}, at::TensorOptions().dtype(dtype).device(device_));
  view.set_(storage_, offset, sizes, strides);
  return view;
}

at::Tensor GradientBucket::make_view(size_t part) const {
  return make_view(dtype_, parts_[part].offset(), parts_[part].sizes(), parts_[part].strides());
}

at::Tensor GradientBucket::flat() const {
  return make_view(dtype_, 0, {static_cast<int64_t>(bytes_of(reals_) / c10::elementSize(dtype_))},
                   {1});
}

void GradientBucket::place_result() const {
  if (!share_ || share_->count == 0) return;
  const PlainMode plain;
  share_->values.copy_(share_->result);
  if (share_->factor != 1) share_->values.mul_(share_->factor);
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
  submission.memory = {{input_, memory_.get(), count}};
  submission.narrowed = narrows() && !share_;
  submission.absent = std::move(absent);
  submission.keep_alive = memory_;
  if (share_) {
    std::byte* const result = memory_.get() + share_->result_at;
    submission.memory.front().output = nullptr;
    submission.allocate_output = [result](size_t /*part*/, int64_t /*elements*/,
                                          core::MemoryQueue& /*queue*/) { return result; };
  }
  if (!device_.is_cpu()) {
    note_device(submission, device_);
    if (current_stream_is_captured(device_)) submission.spec = captured(*spec_);
    try {
      if (share_ && share_->all.defined()) {
        const bool scales = narrow_.factor != 1;
        share_->all_narrow.copy_(scales ? share_->all.mul(narrow_.factor) : share_->all);
      }
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
    // Clears the gap before the flags: it shares a block with gradients, and may hold a NaN.
    std::memset(memory_.get() + bytes_of(reals_), 0, bytes_of(flags_begin_ - reals_));
    return flags.write(memory_.get() + bytes_of(flags_begin_), real_dtype_);
  }
  flags.write(narrow_.memory + static_cast<size_t>(reals_) * size_of(narrow_.dtype),
              scalar_type_of(narrow_.dtype));
}

void GradientBucket::add_flags_to(RoundFlags& flags) const {
  if (has_flags_) flags.add(memory_.get() + bytes_of(flags_begin_), real_dtype_);
}

void GradientBucket::refuse(const Error& error) {
  refusal = error;
  ops::runtime().refuse(name_, error.what(), set_);
}

}  // namespace horon::torch_detail
