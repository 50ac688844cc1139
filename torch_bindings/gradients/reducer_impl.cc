#include "horon/torch_bindings/gradients/reducer_impl.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <span>
#include <utility>

#include <ATen/ops/zeros_like.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {
namespace {

std::string name_or_default(const std::string& name, uint32_t set) {
  static std::mutex mutex;
  static std::map<uint32_t, int64_t> constructed;
  const std::lock_guard lock(mutex);
  const int64_t number = constructed[set]++;
  return name.empty() ? core::concat("gradients.", number) : name;
}

}  // namespace

GradientEngine::GradientEngine(const NamedTensors& parameters,
                               const GradientReducerOptions& options)
    : options_(options),
      settings_(settings_of(options)),
      name_(name_or_default(options.name, settings_.set)),
      destroy_timeout_s_(ops::runtime().config().shutdown_timeout_s),
      has_timeline_(ops::runtime().timeline() != nullptr),
      late_(name_, settings_),
      no_sync_depth_(std::make_shared<std::atomic<int>>(0)) {
  add_parameters(parameters);
}

void GradientEngine::add_parameters(const NamedTensors& parameters) {
  if (!settings_.member) return;
  const PlainMode plain;
  const size_t first_slot = slots_.size();
  std::vector<GradientLayout> added;
  NamedTensors accepted;
  std::unordered_set<const void*> seen = known_;
  UniqueNames names = names_;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.defined()) {
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("parameter \"", name, "\" is undefined"));
    }
    if (!at::isFloatingType(parameter.scalar_type()) && !parameter.requires_grad()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    names.add({name, parameter}, "parameter");
    added.push_back(layout_of(parameter, name));
    accepted.emplace_back(name, parameter);
  }
  if (first_slot == 0) find_groups(options_.groups, added);  // throws before anything has changed
  std::vector<HookedParameter> hooks;
  for (const auto& [name, parameter] : accepted) {
    hooks.emplace_back(parameter, name, this, slots_.size() + hooks.size());
  }
  known_ = std::move(seen);
  names_ = std::move(names);
  for (const auto& [name, parameter] : accepted) {
    slots_.emplace_back(name, parameter, settings_);
    slots_.back().expected = parameter.requires_grad();
  }
  layouts_.insert(layouts_.end(), added.begin(), added.end());
  std::move(hooks.begin(), hooks.end(), std::back_inserter(hooks_));
  make_buckets(first_slot);
}

SlotGroups GradientEngine::groups() const {
  if (options_.num_groups > 0) return split_into_groups(options_.num_groups, layouts_);
  return find_groups(options_.groups, layouts_);
}

void GradientEngine::make_buckets(size_t first_slot) {
  const auto part = std::span(layouts_).subspan(first_slot);
  const SlotGroups asked_for = first_slot == 0 ? groups() : SlotGroups();
  for (std::vector<size_t>& members : plan_buckets(part, settings_.bytes, asked_for)) {
    for (size_t& slot : members) slot += first_slot;
    const size_t number = buckets_.size();
    buckets_.emplace_back(core::concat(name_, ".bucket.", number), std::move(members), layouts_,
                          settings_);
    GradientBucket& bucket = buckets_.back();
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      GradientSlot& slot = slots_[bucket.slots()[i]];
      slot.move_to(bucket, i);
      slot.bucket_number = number;
    }
    begin_step(bucket);
  }
  SlotGroups plan;
  for (const GradientBucket& bucket : buckets_) plan.push_back(bucket.slots());
  agreement_.emplace(name_, describe_plan(plan, layouts_, settings_.text()), settings_);
  statistics_.buckets = static_cast<int64_t>(buckets_.size());
}

void GradientEngine::rebuild(std::vector<GradientLayout> layouts) {
  layouts_ = std::move(layouts);
  const std::deque<GradientBucket> old = std::exchange(buckets_, {});  // until all have moved
  make_buckets(0);
}

void GradientEngine::rebuild_if_changed() {
  bool changed = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    changed = changed || !layouts_[i].fits(slots_[i].parameter());
  }
  if (!changed) return;
  std::vector<GradientLayout> layouts;
  for (size_t i = 0; i < slots_.size(); ++i) {
    layouts.push_back(layout_of(slots_[i].parameter(), slots_[i].name()));
    layouts.back().sparse = layouts_[i].sparse;
  }
  rebuild(std::move(layouts));
}

void GradientEngine::begin_step(GradientBucket& bucket) {
  bucket.handle.reset();
  bucket.refusal.reset();
  bucket.pending = 0;
  for (const size_t slot : bucket.slots()) {
    slots_[slot].passes = 0;
    bucket.pending += slots_[slot].expected ? 1 : 0;
  }
}

void GradientEngine::before_accumulate(size_t index) {
  if (broken_) return;
  GradientSlot& slot = slots_[index];
  const GradientSlot::Busy busy(slot);
  const PlainMode plain;
  if (!open_) {
    const std::lock_guard lock(mutex_);
    if (!open_) rebuild_if_changed();
  }
  if (!layouts_[index].fits(slot.parameter())) {
    throw Error(
        ErrorCode::InvalidArgument,
        core::concat("parameter \"", slot.name(), "\" has changed its dtype, shape, layout ",
                     "or device between a backward() and synchronize()"));
  }
  slot.before_accumulate(weight_);
}

void GradientEngine::after_accumulate(size_t index) {
  if (broken_) return;
  GradientSlot& slot = slots_[index];
  const GradientSlot::Busy busy(slot);
  const PlainMode plain;
  const GradientSlot::Arrival arrival = slot.after_accumulate();
  if (arrival != GradientSlot::Arrival::Nothing) mark_arrival(slot, arrival);
}

void GradientEngine::mark_arrival(GradientSlot& slot, GradientSlot::Arrival arrival) {
  const std::lock_guard lock(mutex_);
  if (has_timeline_) {
    last_arrival_ = Clock::now();
    if (!open_) first_arrival_ = last_arrival_;
  }
  open_ = true;
  if (arrival == GradientSlot::Arrival::Late) ++statistics_.late_parts;
  if (*no_sync_depth_ > 0) return;
  if (++slot.passes != settings_.passes || !slot.expected) return;
  GradientBucket& bucket = buckets_[slot.bucket_number];
  // It may have gone already, when synchronize() was called in a no_sync() or failed.
  if (--bucket.pending > 0 || bucket.is_sparse() || bucket.handle != nullptr) return;
  submit(bucket);
  ++statistics_.submitted_in_backward;
}

BucketView GradientEngine::view_of(const GradientBucket& bucket) const {
  BucketView view;
  view.index = static_cast<int64_t>(slots_[bucket.slots().front()].bucket_number);
  view.name = bucket.name();
  view.flat = bucket.flat();
  for (const size_t slot : bucket.slots()) view.parameters.push_back(slots_[slot].name());
  return view;
}

void GradientEngine::submit(GradientBucket& bucket) {
  std::vector<bool> absent(bucket.slots().size());
  try {
    for (size_t i = 0; i < absent.size(); ++i) {
      absent[i] = !slots_[bucket.slots()[i]].prepare_submission(weight_);
    }
  } catch (const Error& error) {
    bucket.refuse(error);
    throw;
  }
  const bool unused = std::find(absent.begin(), absent.end(), false) == absent.end();
  if (!unused && !passes_checks(bucket, absent)) return;
  if (std::find(absent.begin(), absent.end(), true) == absent.end()) absent.clear();
  bucket.submit(std::move(absent));
}

// What fails here is thrown by synchronize(), on all ranks at the same place of the program.
bool GradientEngine::passes_checks(GradientBucket& bucket, const std::vector<bool>& absent) {
  if (settings_.check_finite && bucket.elements() > 0 && !all_finite(bucket.flat())) {
    for (size_t i = 0; i < absent.size(); ++i) {
      const GradientSlot& slot = slots_[bucket.slots()[i]];
      if (absent[i] || all_finite(slot.view())) continue;
      bucket.refuse(gradient_not_finite(slot.name(), slot.view()));
      return false;
    }
  }
  if (!before_bucket) return true;
  std::string what;
  try {
    before_bucket(view_of(bucket));
    return true;
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {
    what = "not a std::exception";
  }
  bucket.refuse(Error(ErrorCode::InvalidArgument,
                      core::concat("before_bucket() of \"", bucket.name(), "\" on rank ", rank(),
                                   " has thrown: ", what)));
  return false;
}

void GradientEngine::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("weight ", weight, " is not a number of 0 or more"));
  }
  if (settings_.op != ReduceOp::Average) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_weight() is for Average, not for ", to_string(settings_.op)));
  }
  if (open_) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_weight() of \"", name_, "\" came after a gradient (of \"",
                             unsynchronized_parameter(),
                             "\"); call it before the first backward() of the step"));
  }
  weight_ = weight;
}

void GradientEngine::before_zeroing_in_place() {
  const PlainMode plain;
  for (GradientSlot& slot : slots_) {
    if (slot.state() != GradientSlot::State::Submitted) continue;
    at::Tensor& grad = slot.parameter().mutable_grad();
    if (!grad.defined() || grad.layout() != at::kStrided) continue;
    grad = at::zeros_like(slot.view());
  }
}

std::string GradientEngine::unsynchronized_parameter() const {
  for (const GradientSlot& slot : slots_) {
    if (slot.fired()) return slot.name();
  }
  return {};
}

GradientEngine::~GradientEngine() {
  hooks_.clear();
  const bool may_wait = std::uncaught_exceptions() == 0 && !broken_;
  const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(destroy_timeout_s_));
  for (const GradientBucket& bucket : buckets_) {
    if (bucket.handle == nullptr) continue;
    // What does not end in time keeps its memory by itself; only .grad lets go of it.
    bool finished = bucket.handle->finished();
    const auto left = std::max(Clock::duration::zero(), limit - Clock::now());
    if (!finished && may_wait) finished = bucket.handle->wait(left);
    for (const size_t slot : bucket.slots()) slots_[slot].abandon(finished);
  }
}

}  // namespace horon::torch_detail
