#include "horon/torch_bindings/late_parts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/ops/empty_strided.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session.h"
#include "horon/torch_bindings/tensor_memory.h"

namespace horon::torch_detail {
namespace {

constexpr size_t kLate = 0, kDiscarded = 1, kCounts = 2, kFlags = 3;

std::shared_ptr<const core::EntrySpec> flat_spec(std::string part, DataType dtype, ReduceOp op,
                                                 std::vector<int64_t> shape) {
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Allreduce;
  spec->dtype = dtype;
  spec->reduce_op = op;
  spec->parts.push_back({std::move(part), std::move(shape)});
  return spec;
}

std::shared_ptr<core::HandleState> submit_in_place(std::string name,
                                                   std::shared_ptr<const core::EntrySpec> spec,
                                                   void* memory, int64_t count,
                                                   std::shared_ptr<void> keep_alive) {
  core::Submission submission;
  submission.name = std::move(name);
  submission.spec = std::move(spec);
  submission.memory = {
      {static_cast<const std::byte*>(memory), static_cast<std::byte*>(memory), count}};
  submission.keep_alive = std::move(keep_alive);
  return core::runtime().submit(std::move(submission));
}

}  // namespace

const core::Outcome& finish(const std::shared_ptr<core::HandleState>& handle) {
  handle->wait(std::nullopt);
  if (const std::optional<Error>& error = handle->outcome().error) throw Error(*error);
  return handle->outcome();
}

LateParts::LateParts(std::string reducer_name, const std::string& plan, ReduceOp op)
    : name_(std::move(reducer_name) + ".late"),
      op_(op),
      count_spec_(
          flat_spec(core::concat("late parts of ", plan), DataType::Int64, ReduceOp::Max, {1})) {}

void LateParts::announce(const std::deque<GradientSlot>& slots) {
  flags_.reset();
  reductions_.clear();
  count_ = std::make_shared<int64_t>(0);
  for (const GradientSlot& slot : slots) {
    if (slot.late().defined() || slot.discarded()) ++*count_;
  }
  count_handle_ = submit_in_place(name_, count_spec_, count_.get(), 1, count_);
}

void LateParts::agree(const std::deque<GradientSlot>& slots) {
  finish(count_handle_);
  if (*count_ == 0) return;
  flags_ = std::make_shared<std::vector<uint8_t>>();
  for (const GradientSlot& slot : slots) {
    flags_->push_back(slot.late().defined());
    flags_->push_back(slot.discarded());
    flags_->push_back(slot.counts_in_bucket());
  }
  const auto count = static_cast<int64_t>(flags_->size());
  const std::string name = name_ + ".flags";
  finish(submit_in_place(name, flat_spec(name, DataType::UInt8, ReduceOp::Max, {count}),
                         flags_->data(), count, flags_));
  for (size_t i = 0; i < slots.size(); ++i) {
    if (any(i, kLate)) submit(i, slots[i]);
  }
}

void LateParts::submit(size_t index, const GradientSlot& slot) {
  const at::Tensor& view = slot.view();
  at::Tensor memory = slot.late();
  if (!memory.defined()) {
    memory = at::empty_strided(view.sizes(), view.strides(), view.options());
    memory.fill_(neutral_element(op_));
  }
  const std::string name = core::concat(name_, ".", slot.name());
  auto handle = submit_in_place(
      name, flat_spec(slot.name(), data_type_of(view, slot.name()), op_, view.sizes().vec()),
      memory.mutable_data_ptr(), memory.numel(), std::make_shared<at::Tensor>(memory));
  reductions_.push_back({index, std::move(memory), std::move(handle)});
}

void LateParts::wait() {
  // All of them first: when one has failed, the others may still write.
  for (const Reduction& reduction : reductions_) reduction.handle->wait(std::nullopt);
  for (const Reduction& reduction : reductions_) finish(reduction.handle);
}

bool LateParts::any(size_t slot, size_t flag) const {
  return flags_ != nullptr && (*flags_)[kFlags * slot + flag] != 0;
}

bool LateParts::discarded(size_t slot) const { return any(slot, kDiscarded); }

bool LateParts::disputed(size_t slot) const { return any(slot, kDiscarded) && any(slot, kCounts); }

at::Tensor LateParts::reduced(size_t slot) const {
  const auto found = std::lower_bound(
      reductions_.begin(), reductions_.end(), slot,
      [](const Reduction& reduction, size_t wanted) { return reduction.slot < wanted; });
  return found != reductions_.end() && found->slot == slot ? found->memory : at::Tensor();
}

}  // namespace horon::torch_detail
