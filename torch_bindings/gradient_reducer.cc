#include "horon/torch_bindings/gradient_reducer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <unordered_set>

#include <ATen/ops/zeros_like.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/ops/session.h"
#include "horon/torch_bindings/failures.h"
#include "horon/torch_bindings/gradient_bucket.h"
#include "horon/torch_bindings/gradient_hooks.h"
#include "horon/torch_bindings/gradient_slot.h"
#include "horon/torch_bindings/late_parts.h"
#include "horon/torch_bindings/plain_mode.h"

namespace horon {
namespace {

using namespace torch_detail;
using Clock = core::Timeline::Clock;

int64_t bytes_or(const std::optional<int64_t>& wish, int64_t knob, std::string_view what) {
  if (wish && *wish <= 0) {
    throw Error(ErrorCode::InvalidArgument, core::concat(what, " is ", *wish, ", not above 0"));
  }
  return wish.value_or(knob);
}

std::string name_or_default(const std::string& name) {
  static std::atomic<int64_t> constructed{0};
  const int64_t number = constructed.fetch_add(1);
  return name.empty() ? core::concat("gradients.", number) : name;
}

}  // namespace

class GradientReducer::Impl final : public GradientListener {
 public:
  Impl(const NamedParameters& parameters, const GradientReducerOptions& options)
      : options_(options),
        name_(name_or_default(options.name)),
        first_bytes_(bytes_or(options.first_bucket_bytes,
                              core::runtime().config().first_bucket_bytes, "first_bucket_bytes")),
        bytes_(
            bytes_or(options.bucket_bytes, core::runtime().config().bucket_bytes, "bucket_bytes")),
        destroy_timeout_s_(core::runtime().config().shutdown_timeout_s),
        has_timeline_(core::runtime().timeline() != nullptr) {
    add_parameters(parameters);
  }
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void before_accumulate(size_t index) override;
  void after_accumulate(size_t index) override;
  void synchronize();
  void add_parameters(const NamedParameters& parameters);
  void before_zeroing_in_place();
  std::string unsynchronized_parameter() const;
  double reduce_number(double value);

  const GradientReducerOptions options_;
  const std::string name_;
  GradientStatistics statistics_;

 private:
  void make_buckets(size_t first_slot);
  void rebuild_if_changed();
  void begin_step(GradientBucket& bucket);
  void mark_arrival(GradientSlot& slot, GradientSlot::Arrival arrival);
  void submit(GradientBucket& bucket);
  void submit_rest(Failures& failures);
  void run_step(Failures& failures);
  void check_undisputed(size_t slot) const;
  void settle(Failures& failures);
  void end_step(Clock::time_point begin);

  const int64_t first_bytes_;
  const int64_t bytes_;
  const double destroy_timeout_s_;
  const bool has_timeline_;  // false: no clock is read in hooks

  std::deque<GradientSlot> slots_;  // in the order of registration; addresses stay
  std::vector<GradientLayout> layouts_;
  std::deque<GradientBucket> buckets_;
  std::unordered_set<const void*> known_;
  std::optional<LateParts> late_;
  std::vector<HookedParameter> hooks_;
  std::optional<Error> broken_;  // ranks have different plans: there is no way on

  std::mutex mutex_;               // hooks of different parameters may run on different threads
  std::atomic<bool> open_{false};  // a gradient has come since the last synchronize()
  Clock::time_point first_arrival_, last_arrival_;
};

void GradientReducer::Impl::add_parameters(const NamedParameters& parameters) {
  const PlainMode plain;
  const size_t first_slot = slots_.size();
  std::vector<GradientLayout> added;
  NamedParameters accepted;
  std::unordered_set<const void*> seen = known_;
  for (const auto& [name, parameter] : parameters) {
    if (!parameter.defined()) {
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("parameter \"", name, "\" is undefined"));
    }
    if (!at::isFloatingType(parameter.scalar_type()) && !parameter.requires_grad()) continue;
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    added.push_back(layout_of(parameter, name));
    accepted.emplace_back(name, parameter);
  }
  std::vector<HookedParameter> hooks;
  for (const auto& [name, parameter] : accepted) {
    hooks.emplace_back(parameter, name, this, slots_.size() + hooks.size());
  }
  known_ = std::move(seen);
  for (auto& [name, parameter] : accepted) {
    slots_.emplace_back(name, parameter, options_.op, core::runtime().topology().size);
    slots_.back().expected = parameter.requires_grad();
  }
  layouts_.insert(layouts_.end(), added.begin(), added.end());
  std::move(hooks.begin(), hooks.end(), std::back_inserter(hooks_));
  make_buckets(first_slot);
}

void GradientReducer::Impl::make_buckets(size_t first_slot) {
  const auto part = std::span(layouts_).subspan(first_slot);
  for (std::vector<size_t>& members : plan_buckets(part, first_bytes_, bytes_)) {
    for (size_t& slot : members) slot += first_slot;
    const size_t number = buckets_.size();
    buckets_.emplace_back(core::concat(name_, ".bucket.", number), std::move(members), layouts_,
                          options_.op);
    GradientBucket& bucket = buckets_.back();
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      GradientSlot& slot = slots_[bucket.slots()[i]];
      slot.move_to(bucket, i);
      slot.bucket_number = number;
    }
    begin_step(bucket);
  }
  late_.emplace(name_, describe_plan(buckets_, layouts_, options_.op), options_.op);
  statistics_.buckets = static_cast<int64_t>(buckets_.size());
}

void GradientReducer::Impl::rebuild_if_changed() {
  bool changed = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    changed = changed || !layouts_[i].fits(slots_[i].parameter());
  }
  if (!changed) return;
  std::vector<GradientLayout> layouts;
  for (const GradientSlot& slot : slots_) {
    layouts.push_back(layout_of(slot.parameter(), slot.name()));
  }
  layouts_ = std::move(layouts);
  const std::deque<GradientBucket> old = std::exchange(buckets_, {});  // until all have moved
  make_buckets(0);
}

void GradientReducer::Impl::begin_step(GradientBucket& bucket) {
  bucket.handle.reset();
  bucket.refused = false;
  bucket.pending = 0;
  for (const size_t slot : bucket.slots()) bucket.pending += slots_[slot].expected ? 1 : 0;
}

void GradientReducer::Impl::before_accumulate(size_t index) {
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
  slot.before_accumulate();
}

void GradientReducer::Impl::after_accumulate(size_t index) {
  if (broken_) return;
  GradientSlot& slot = slots_[index];
  const GradientSlot::Busy busy(slot);
  const PlainMode plain;
  const GradientSlot::Arrival arrival = slot.after_accumulate();
  if (arrival != GradientSlot::Arrival::Nothing) mark_arrival(slot, arrival);
}

void GradientReducer::Impl::mark_arrival(GradientSlot& slot, GradientSlot::Arrival arrival) {
  const std::lock_guard lock(mutex_);
  if (has_timeline_) {
    last_arrival_ = Clock::now();
    if (!open_) first_arrival_ = last_arrival_;
  }
  open_ = true;
  if (arrival == GradientSlot::Arrival::Late) ++statistics_.late_parts;
  if (arrival != GradientSlot::Arrival::First || !slot.expected) return;
  GradientBucket& bucket = buckets_[slot.bucket_number];
  if (--bucket.pending > 0) return;
  submit(bucket);
  ++statistics_.submitted_in_backward;
}

void GradientReducer::Impl::submit(GradientBucket& bucket) {
  std::vector<bool> absent(bucket.slots().size());
  bool any_absent = false;
  try {
    for (size_t i = 0; i < absent.size(); ++i) {
      absent[i] = !slots_[bucket.slots()[i]].prepare_submission();
      any_absent = any_absent || absent[i];
    }
  } catch (const Error& error) {
    bucket.refuse(error.what());
    throw;
  }
  if (!any_absent) absent.clear();
  bucket.submit(std::move(absent));
}

void GradientReducer::Impl::submit_rest(Failures& failures) {
  for (GradientBucket& bucket : buckets_) {
    if (bucket.handle == nullptr && !bucket.refused) failures.run([&] { submit(bucket); });
  }
}

void GradientReducer::Impl::synchronize() {
  if (broken_) throw Error(*broken_);
  const Clock::time_point begin = Clock::now();
  const PlainMode plain;
  if (!open_) rebuild_if_changed();
  Failures failures;
  run_step(failures);
  end_step(begin);
  if (failures.first()) throw Error(*failures.first());
}

void GradientReducer::Impl::run_step(Failures& failures) {
  for (GradientSlot& slot : slots_) failures.run([&] { slot.inspect(); });
  submit_rest(failures);
  // Before anything is waited for: the answer comes with the last bucket.
  if (failures.run([&] { late_->announce(slots_); })) {
    Failures agreement;
    agreement.run([&] { late_->agree(slots_); });
    if (agreement.first() && agreement.first()->code() == ErrorCode::Mismatch) {
      // Buckets that other ranks do not have would never end.
      broken_ = agreement.first();
      for (GradientSlot& slot : slots_) slot.abandon(false);
      throw Error(*broken_);
    }
    failures.run([&] {
      if (agreement.first()) throw Error(*agreement.first());
      late_->wait();
    });
  }
  settle(failures);
}

void GradientReducer::Impl::check_undisputed(size_t slot) const {
  if (!late_->disputed(slot)) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("gradient of \"", slots_[slot].name(), "\": one rank has dropped it ",
                           "(zero_grad()) while it was being reduced, and another has not, or had ",
                           "not begun; call synchronize() before zero_grad()"));
}

void GradientReducer::Impl::settle(Failures& failures) {
  for (GradientBucket& bucket : buckets_) {
    GradientSlot::Result result;
    const core::Outcome* outcome = nullptr;
    result.failed = !failures.run([&] {
      if (bucket.handle == nullptr) {
        throw Error(ErrorCode::OperationFailed, "a gradient bucket could not be submitted");
      }
      outcome = &finish(bucket.handle);
    });
    const bool bucket_failed = result.failed;
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      const size_t slot = bucket.slots()[i];
      result.failed = bucket_failed || !failures.run([&] { check_undisputed(slot); });
      result.discarded = late_->discarded(slot);
      result.late = late_->reduced(slot);
      if (!bucket_failed) {
        result.unused = outcome->unused;
        result.produced = !outcome->unused && (outcome->produced.empty() || outcome->produced[i]);
      }
      slots_[slot].expected = open_ ? slots_[slot].fired() : slots_[slot].expected;
      slots_[slot].settle(result);
    }
  }
}

void GradientReducer::Impl::end_step(Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  statistics_.wait_seconds += std::chrono::duration<double>(end - begin).count();
  ++statistics_.steps;
  core::Timeline* const timeline =
      has_timeline_ && is_initialized() ? core::runtime().timeline() : nullptr;
  if (timeline != nullptr) {
    if (open_) timeline->span("training", "backward", first_arrival_, last_arrival_, name_);
    timeline->span("training", "synchronize", begin, end, name_);
  }
  for (GradientBucket& bucket : buckets_) begin_step(bucket);
  open_ = false;
}

void GradientReducer::Impl::before_zeroing_in_place() {
  const PlainMode plain;
  for (GradientSlot& slot : slots_) {
    if (slot.state() != GradientSlot::State::Submitted) continue;
    at::Tensor& grad = slot.parameter().mutable_grad();
    if (grad.defined()) grad = at::zeros_like(slot.view());
  }
}

std::string GradientReducer::Impl::unsynchronized_parameter() const {
  for (const GradientSlot& slot : slots_) {
    if (slot.fired()) return slot.name();
  }
  return {};
}

double GradientReducer::Impl::reduce_number(double value) {
  auto memory = std::make_shared<double>(value);
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Allreduce;
  spec->dtype = DataType::Float64;
  spec->reduce_op = options_.op == ReduceOp::Sum ? ReduceOp::Sum : ReduceOp::Average;
  core::Submission submission;
  submission.name = name_ + ".number";
  spec->parts.push_back({submission.name, {1}});
  submission.spec = std::move(spec);
  auto* const bytes = reinterpret_cast<std::byte*>(memory.get());
  submission.memory = {{bytes, bytes, 1}};
  submission.keep_alive = memory;
  finish(core::runtime().submit(std::move(submission)));
  return *memory;
}

GradientReducer::Impl::~Impl() {
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

GradientReducer::GradientReducer(const NamedParameters& parameters, GradientReducerOptions options)
    : impl_(std::make_unique<Impl>(parameters, options)) {}

GradientReducer::~GradientReducer() = default;

void GradientReducer::synchronize() { impl_->synchronize(); }

void GradientReducer::add_parameters(const NamedParameters& parameters) {
  impl_->add_parameters(parameters);
}

void GradientReducer::before_zeroing_in_place() { impl_->before_zeroing_in_place(); }

std::string GradientReducer::unsynchronized_parameter() const {
  return impl_->unsynchronized_parameter();
}

double GradientReducer::reduce_number(double value) { return impl_->reduce_number(value); }

GradientStatistics GradientReducer::statistics() const { return impl_->statistics_; }

double GradientReducer::exposed_wait_seconds() const { return impl_->statistics_.wait_seconds; }

const std::string& GradientReducer::name() const { return impl_->name_; }

}  // namespace horon
