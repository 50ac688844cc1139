// Which gradients a reducer reduces, and in which buckets.
#include <algorithm>
#include <span>
#include <utility>

#include <ATen/ops/zeros_like.h>

#include "horon/core/base/forked_child.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/stream_order.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {

using namespace torch_detail;

namespace {

bool can_be_reduced(const at::Tensor& parameter, bool linear) {
  if (parameter.is_complex()) return linear && parameter.scalar_type() != at::kComplexHalf;
  return parameter.is_floating_point() && !is_moved_only(parameter);
}

// A group may name what is left out, and has the others only. Throws if it names anything else.
void settle_groups(std::vector<std::vector<std::string>>& groups,
                   std::span<const GradientLayout> added, const NamedTensors& left_out) {
  for (std::vector<std::string>& group : groups) {
    for (const auto& [name, parameter] : left_out) std::erase(group, name);
  }
  (void)find_groups(groups, added);
}

// All gradients of a reducer are in the order of the streams of one device.
void require_device(c10::Device device, const std::string& of_first,
                    std::span<const GradientLayout> layouts) {
  for (const GradientLayout& layout : layouts) {
    if (layout.device == device) continue;
    throw Error(ErrorCode::InvalidArgument,
                core::concat("parameter \"", layout.name, "\" is on ", layout.device, ", but \"",
                             of_first, "\" is on ", device,
                             "; a reducer needs all parameters on one device: move the model ",
                             "to horon::device() before wrapping it"));
  }
}

}  // namespace

void GradientReducer::Impl::add_parameters(const NamedTensors& parameters) {
  if (!settings_.member) return;
  require_session();
  finish_given_up_round();
  const PlainMode plain;
  if (!slots_.empty()) catch_up_with_buckets();
  const size_t first_slot = slots_.size();
  std::vector<GradientLayout> added;
  NamedTensors accepted, left_out;
  std::unordered_set<const void*> seen = known_;
  UniqueNames names = names_;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.defined()) {
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("parameter \"", name, "\" is undefined"));
    }
    if (!parameter.requires_grad() && !can_be_reduced(parameter, settings_.is_linear())) {
      left_out.emplace_back(name, parameter);
      continue;
    }
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    names.add({name, parameter}, "parameter");
    added.push_back(layout_of(parameter, name, settings_.op));
    accepted.emplace_back(name, parameter);
  }
  if (!slots_.empty()) {
    require_device(slots_.front().parameter().device(), slots_.front().name(), added);
  } else if (!added.empty()) {
    require_device(added.front().device, added.front().name, added);
  }
  if (!added.empty() && added.front().device.is_cuda()) {
    const std::string why = ops::runtime().unavailable(settings_.set, DeviceKind::Cuda);
    if (!why.empty()) {
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("parameter \"", added.front().name, "\" is on ",
                               added.front().device, "; the process set can't use GPUs: ", why));
    }
  }
  // These throw before anything has changed.
  if (!alone_) refuse_new_buckets_in_capture(added);
  if (first_slot == 0) settle_groups(options_.groups, added, left_out);
  std::vector<HookedParameter> hooks;
  for (const auto& [name, parameter] : accepted) {
    hooks.emplace_back(parameter, name, this, slots_.size() + hooks.size(), hooks_needed());
  }
  known_ = std::move(seen);
  names_ = std::move(names);
  for (const auto& [name, parameter] : left_out) left_out_.emplace_back(name, parameter);
  for (const auto& [name, parameter] : accepted) {
    slots_.emplace_back(name, parameter, settings_);
    slots_.back().expect_in_all_rounds(parameter.requires_grad());
  }
  layouts_.insert(layouts_.end(), added.begin(), added.end());
  std::move(hooks.begin(), hooks.end(), std::back_inserter(hooks_));
  round_is_due_ = true;
  restart_tuning();
  add_to_order();
  make_buckets(first_slot);
}

// Refuses one that was unfrozen since: each rank would train it by its own gradients.
void GradientReducer::Impl::check_left_out() const {
  for (const auto& [name, parameter] : left_out_) {
    if (parameter.requires_grad()) (void)layout_of(parameter, name, settings_.op);  // throws
  }
}

SlotGroups GradientReducer::Impl::groups() const {
  if (options_.num_groups > 0) return split_into_groups(options_.num_groups, layouts_);
  return find_groups(options_.groups, layouts_);
}

SlotGroups GradientReducer::Impl::bucket_slots() const {
  SlotGroups plan;
  for (const GradientBucket& bucket : buckets_) plan.push_back(bucket.slots());
  return plan;
}

// What goes to one rank lies in one stretch.
void GradientReducer::Impl::sort_by_owner(std::vector<size_t>& slots) const {
  if (settings_.owners == nullptr) return;
  std::stable_sort(slots.begin(), slots.end(), [this](size_t a, size_t b) {
    return settings_.owners->member_of(slots_[a].parameter()) <
           settings_.owners->member_of(slots_[b].parameter());
  });
}

// In real numbers; empty: every rank gets all.
std::vector<int64_t> GradientReducer::Impl::shares_of(const std::vector<size_t>& slots) const {
  if (settings_.owners == nullptr) return {};
  std::vector<int64_t> shares(settings_.ranks.size());
  for (const size_t slot : slots) {
    shares[settings_.owners->member_of(slots_[slot].parameter())] += layouts_[slot].reals();
  }
  return shares;
}

void GradientReducer::Impl::make_buckets(size_t first_slot) {
  const auto part = std::span(layouts_).subspan(first_slot);
  settings_.device = layouts_.empty() ? c10::Device(c10::kCPU) : layouts_.front().device;
  const bool of_all = first_slot == 0;
  const SlotGroups asked_for = of_all ? groups() : SlotGroups();
  const std::span<const size_t> order = of_all ? std::span(slot_order_) : std::span<size_t>();
  for (std::vector<size_t>& members : plan_buckets(part, settings_.bytes, asked_for, order)) {
    for (size_t& slot : members) slot += first_slot;
    sort_by_owner(members);
    const size_t number = buckets_.size();
    buckets_.emplace_back(core::concat(name_, ".bucket.", number), std::move(members), layouts_,
                          settings_, shares_of(members), alone_);
    GradientBucket& bucket = buckets_.back();
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      GradientSlot& slot = slots_[bucket.slots()[i]];
      slot.move_to(bucket, i);
      slot.bucket_number = number;
      slot.accumulating = false;  // an exception may have come between its hooks
    }
  }
  const std::string text = describe_plan(bucket_slots(), layouts_, settings_.text());
  for (GradientBucket& bucket : buckets_) bucket.name_plan(text);
  agreement_.emplace(name_, text, settings_);
  agree_first_ = true;
  statistics_.buckets = static_cast<int64_t>(buckets_.size());
  statistics_.piece_bytes = settings_.bytes.piece;
}

void GradientReducer::Impl::require_whole_gradients(const char* call) const {
  if (settings_.owners == nullptr) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat(call, " of \"", name_, "\" needs all reduced gradients, but with ",
                           "shard_gradients a rank has only its own; leave out shard_gradients"));
}

bool GradientReducer::Impl::has_name(const std::string& name) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const GradientSlot& slot) { return slot.name() == name; });
}

void GradientReducer::Impl::set_passes(int passes) {
  require_session();
  finish_given_up_round();
  begin_anew_after_join();
  if (open_ || number_.round > 1) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_backward_passes_per_step() of \"", name_, "\" was called in the ",
                             "middle of a step; call it after step() and before backward()"));
  }
  refuse_new_buckets_in_capture(layouts_);
  GradientReducerOptions wanted = options_;
  wanted.backward_passes_per_step = passes;
  const BucketBytes tuned = settings_.bytes;
  settings_ = settings_of(wanted, settings_.owners);  // throws if it is wrong
  settings_.bytes = tuned;
  options_ = std::move(wanted);
  restart_tuning();
  if (!settings_.leaves_gradients_alone()) use_buckets();
  if (settings_.member) rebuild(std::move(layouts_));  // the ranks compare it with the plan
}

// Memory of buckets is allocated once, and not by each launch of a graph.
void GradientReducer::Impl::refuse_new_buckets_in_capture(
    const std::vector<GradientLayout>& layouts) const {
  if (layouts.empty() || !current_stream_is_captured(layouts.front().device)) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("\"", name_, "\" needs new gradient buckets, which can't be made ",
                           "during the capture of a CUDA graph; run a few steps of the same kind ",
                           "before the capture, to warm up"));
}

void GradientReducer::Impl::rebuild(std::vector<GradientLayout> layouts) {
  refuse_new_buckets_in_capture(layouts);
  has_graphs_ = false;  // graphs write to the old buckets
  layouts_ = std::move(layouts);
  const std::deque<GradientBucket> old = std::exchange(buckets_, {});  // until all have moved
  make_buckets(0);
}

void GradientReducer::Impl::use_buckets() {
  if (!alone_) return;
  std::vector<GradientLayout> layouts = current_layouts();
  refuse_new_buckets_in_capture(layouts);  // before anything has changed
  alone_ = false;
  hooks_.clear();
  for (size_t i = 0; i < slots_.size(); ++i) {
    hooks_.emplace_back(slots_[i].parameter(), slots_[i].name(), this, i, hooks_needed());
  }
  rebuild(std::move(layouts));
  if (open_) return;
  for (GradientSlot& slot : slots_) slot.adopt_older_value();
}

// Of the parameters as they are now.
std::vector<GradientLayout> GradientReducer::Impl::current_layouts() const {
  std::vector<GradientLayout> layouts;
  for (size_t i = 0; i < slots_.size(); ++i) {
    layouts.push_back(layout_of(slots_[i].parameter(), slots_[i].name(), settings_.op));
    layouts.back().sparse = layouts_[i].sparse;
  }
  if (!layouts.empty()) require_device(layouts.front().device, layouts.front().name, layouts);
  return layouts;
}

// Graphs write to this memory as long as they are launched, also when other buckets are in use.
void GradientReducer::Impl::keep_memory_for_graphs() {
  has_graphs_ = true;
  for (const GradientBucket& bucket : buckets_) {
    at::Tensor memory = bucket.flat();
    const auto is_kept = [&](const at::Tensor& kept) { return kept.is_alias_of(memory); };
    if (std::none_of(memory_of_graphs_.begin(), memory_of_graphs_.end(), is_kept)) {
      memory_of_graphs_.push_back(std::move(memory));
    }
  }
}

void GradientReducer::Impl::rebuild_if_changed() {
  const bool changed = !all_fit();
  if (!changed && !next_bytes_ && !next_order_) return;
  // Buckets that would only be faster are not made then: graphs write to .grad where it is now.
  const bool is_for_graphs =
      !memory_of_graphs_.empty() || current_stream_is_captured(settings_.device);
  if (!changed && is_for_graphs) return;
  if (changed) refuse_new_buckets_in_capture(layouts_);
  std::vector<GradientLayout> layouts = changed ? current_layouts() : layouts_;
  if (changed || next_order_) restart_tuning();
  if (changed) watch_order();
  if (next_order_) {
    slot_order_ = *std::exchange(next_order_, {});
    ++statistics_.reorders;
  }
  if (next_bytes_) settings_.bytes = *std::exchange(next_bytes_, {});
  rebuild(std::move(layouts));
}

// Other ranks may have rebuilt theirs, as this one has heard too, while it waited in join().
void GradientReducer::Impl::catch_up_with_buckets() {
  if (alone_ || round_) return;
  begin_anew_after_join();
  if (!open_) rebuild_if_changed();
}

// Gradients that have been sparse on all ranks are expected to be so again: they need no bucket.
// Only while no rank has joined: it would not hear of this, and would go on with other buckets.
void GradientReducer::Impl::learn_sparse() {
  if (settings_.sparse_as_dense || !memory_of_graphs_.empty()) return;
  if (totals_.participants < static_cast<int>(settings_.ranks.size())) return;
  bool learned = false;
  std::vector<GradientLayout> layouts = layouts_;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor reduced = late_.reduced(i);
    if (layouts[i].sparse || !reduced.defined() || reduced.layout() == at::kStrided) continue;
    const at::Tensor& grad = slots_[i].parameter().grad();  // undefined after a failure
    if (!grad.defined() || grad.layout() == at::kStrided) continue;
    layouts[i].sparse = learned = true;
  }
  if (!learned) return;
  restart_tuning();
  rebuild(std::move(layouts));
}

void GradientReducer::Impl::before_zeroing_in_place() {
  core::refuse_forked_child();
  const PlainMode plain;
  for (GradientSlot& slot : slots_) {
    at::Tensor& grad = slot.parameter().mutable_grad();
    if (!grad.defined()) continue;
    if (slot.is_submitted() && grad.layout() == at::kStrided) {
      grad = at::zeros_like(slot.view());
    } else {
      slot.zeroed_in_place();
    }
  }
}

}  // namespace horon
