#include "horon/torch_bindings/gradients/late_parts.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty_strided.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/gradients/round_agreement.h"
#include "horon/torch_bindings/tensors/failures.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon::torch_detail {
namespace {

enum Flag : size_t { kLate, kDiscarded, kCounts, kSparse, kFlags };

}  // namespace

LateParts::LateParts(std::string reducer_name, const GradientSettings& settings)
    : name_(std::move(reducer_name) + ".late"), settings_(settings) {}

void LateParts::clear() {
  flags_.reset();
  reductions_.clear();
}

int64_t LateParts::count(const std::deque<GradientSlot>& slots) {
  return std::count_if(slots.begin(), slots.end(),
                       [](const GradientSlot& slot) { return slot.has_late_part(); });
}

void LateParts::agree(const std::deque<GradientSlot>& slots) {
  flags_ = std::make_shared<std::vector<uint8_t>>();
  for (const GradientSlot& slot : slots) {
    flags_->push_back(slot.late().defined());
    flags_->push_back(slot.discarded());
    flags_->push_back(slot.counts_in_bucket());
    flags_->push_back(slot.sparse_is_new() ? static_cast<uint8_t>(slot.sparse().sparse_dim()) : 0);
  }
  const auto count = static_cast<int64_t>(flags_->size());
  const std::string name = name_ + ".flags";
  (void)submit_in_place(settings_.set, name,
                        flat_spec(number_spec(DataType::UInt8, ReduceOp::Max), name, {count}),
                        flags_->data(), count, flags_)
      ->get();
  Failures failures;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (any(i, kLate) == 0 && any(i, kSparse) == 0) continue;
    failures.run([&] { submit(i, slots[i]); });
  }
  if (failures.first()) throw Error(*failures.first());
}

void LateParts::submit(size_t index, const GradientSlot& slot) {
  const at::Tensor& view = slot.view();
  const std::string name = core::concat(name_, ".", slot.name());
  Reduction& reduction = reductions_.emplace_back();
  reduction.slot = index;
  if (any(index, kLate) == 0) {
    if (slot.sparse().defined()) {
      check_finite({SparseReduction::kIndices, SparseReduction::kValues}, name, slot,
                   slot.sparse().values());
    }
    reduction.sparse.emplace(name, settings_.process_set, view, slot.sparse(), any(index, kSparse));
    return;
  }
  at::Tensor memory = slot.late();
  try {
    if (!memory.defined()) {
      memory = at::empty_strided(view.sizes(), view.strides(), view.options());
      memory.fill_(neutral_element(settings_.op));
    }
    // Some rank's is dense, so all are.
    if (slot.sparse().defined()) memory.add_(slot.sparse());
  } catch (...) {  // LibTorch has no memory, say
    refuse_calls({name}, settings_.process_set, core::current_error());
  }
  check_finite({""}, name, slot, memory);
  const at::Tensor reals = real_view(memory);
  const auto spec = flat_spec(gradient_spec(settings_, data_type_of(reals, slot.name())),
                              slot.name(), reals.sizes().vec());
  reduction.handle =
      submit_in_place(settings_.set, name, spec, memory.mutable_data_ptr(), reals.numel(),
                      std::make_shared<at::Tensor>(memory), memory.device());
  reduction.memory = std::move(memory);
}

void LateParts::check_finite(std::initializer_list<std::string_view> name_endings,
                             const std::string& name, const GradientSlot& slot,
                             const at::Tensor& values) const {
  if (!settings_.check_finite || all_finite(values)) return;
  std::vector<std::string> names;
  for (const std::string_view ending : name_endings) names.push_back(core::concat(name, ending));
  refuse_calls(names, settings_.process_set, gradient_not_finite(slot.name(), values));
}

void LateParts::wait(double scale) {
  // Wait for all reductions first: after one has failed, the others may still write.
  for (const Reduction& reduction : reductions_) {
    if (reduction.handle != nullptr) reduction.handle->wait(std::nullopt);
    if (reduction.sparse) reduction.sparse->wait();
  }
  const double sparse_scale = scale * settings_.prescale * settings_.postscale;
  Failures failures;
  for (Reduction& reduction : reductions_) {
    failures.run([&] {
      if (reduction.sparse) reduction.memory = reduction.sparse->result(settings_.op, sparse_scale);
      if (reduction.handle != nullptr) {
        note_current_stream(reduction.memory);  // a hook may have made it in another one
        (void)outcome_in_order(*reduction.handle, reduction.memory.device());
        if (scale != 1) reduction.memory.mul_(scale);
      }
      reduction.done = reduction.memory.defined();
    });
  }
  if (failures.first()) throw Error(*failures.first());
}

uint8_t LateParts::any(size_t slot, size_t flag) const {
  return flags_ != nullptr ? (*flags_)[kFlags * slot + flag] : 0;
}

bool LateParts::discarded(size_t slot) const { return any(slot, kDiscarded) != 0; }

bool LateParts::disputed(size_t slot) const {
  return any(slot, kDiscarded) != 0 && any(slot, kCounts) != 0;
}

const LateParts::Reduction* LateParts::find(size_t slot) const {
  const auto found = std::lower_bound(
      reductions_.begin(), reductions_.end(), slot,
      [](const Reduction& reduction, size_t wanted) { return reduction.slot < wanted; });
  return found != reductions_.end() && found->slot == slot ? &*found : nullptr;
}

at::Tensor LateParts::reduced(size_t slot) const {
  const Reduction* reduction = find(slot);
  return reduction != nullptr && reduction->done ? reduction->memory : at::Tensor();
}

bool LateParts::failed(size_t slot) const {
  const Reduction* reduction = find(slot);
  return reduction != nullptr && !reduction->done;
}

}  // namespace horon::torch_detail
