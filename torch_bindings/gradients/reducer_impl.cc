#include "horon/torch_bindings/gradients/reducer_impl.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/tensors/finite.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {

using namespace torch_detail;

namespace {

std::string name_or_default(const std::string& name, uint32_t set) {
  const uint64_t number = ops::call_counts().next_object("gradients", set);
  return name.empty() ? core::concat("gradients.", number) : name;
}

bool records(const core::Timeline* timeline) { return timeline != nullptr && timeline->records(); }

}  // namespace

core::Timeline* GradientReducer::Impl::timeline() {
  return is_initialized() ? ops::runtime().timeline() : nullptr;
}

GradientReducer::Impl::Impl(const NamedTensors& parameters, const GradientReducerOptions& options,
                            std::shared_ptr<const ShardOwners> owners)
    : options_(options),
      settings_(settings_of(options, std::move(owners))),
      name_(name_or_default(options.name, settings_.set)),
      order_(core::concat(name_, " of set ", settings_.set)),
      destroy_timeout_s_(ops::runtime().config().shutdown_timeout_s),
      session_(ops::session_number()),
      alone_(settings_.member && settings_.leaves_gradients_alone()),
      late_(name_, settings_),
      ends_(this),
      no_sync_depth_(std::make_shared<std::atomic<int>>(0)),
      joins_(ops::call_counts().times_forgotten(settings_.set)),
      tunes_(ops::runtime().config().autotune && settings_.member && settings_.set_rank == 0 &&
             settings_.ranks.size() > 1) {
  if (!alone_ && ops::runtime().config().keep_heap) kept_heap_.emplace();
  add_parameters(parameters);
}

// Called for the first gradient since the last round.
void GradientReducer::Impl::begin_gathering(int64_t task) {
  const PlainMode plain;
  rebuild_if_changed();
  traces_ = records(timeline());
  int64_t to_go = 0;
  for (GradientBucket& bucket : buckets_) to_go += expect(bucket) > 0 ? 1 : 0;
  buckets_to_go_ = to_go;
  // A hook may round a gradient to 16 bits at once only if nothing must see it in float32 before.
  narrows_in_hooks_ =
      settings_.passes == 1 && !weight_ && !settings_.check_finite && !before_bucket;
  task_that_fits_ = task;
}

bool GradientReducer::Impl::fits(size_t slot) const {
  return slots_[slot].fits() || layouts_[slot].fits(slots_[slot].parameter());
}

bool GradientReducer::Impl::all_fit() const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!fits(i)) return false;
  }
  return true;
}

// The gradients that the bucket waits for: those that have come in this round of an earlier step.
// 0: it is not submitted during backward().
int64_t GradientReducer::Impl::expect(GradientBucket& bucket) {
  int64_t expected = 0;
  int64_t awaited = 0;
  for (const size_t index : bucket.slots()) {
    const GradientSlot& slot = slots_[index];
    if (!slot.expected_in(number_.round)) continue;
    ++expected;
    if (slot.passes < settings_.passes) ++awaited;
  }
  if (bucket.is_sparse() || bucket.handle != nullptr || bucket.refusal) expected = 0;
  if (expected > 0) {
    bucket.countdown.begin(awaited);
  } else {
    bucket.countdown.close();
  }
  return expected;
}

bool GradientReducer::Impl::runs(int64_t task) const {
  return std::find(running_tasks_.begin(), running_tasks_.end(), task) != running_tasks_.end();
}

void GradientReducer::Impl::await_end_of(int64_t task) {
  if (runs(task)) return;
  ends_.await_current_task();
  running_tasks_.push_back(task);
}

void GradientReducer::Impl::wait_for_round(std::unique_lock<std::mutex>& lock) {
  while (round_) {
    if (round_->unattended) {
      lock.unlock();
      finish_given_up_round();
      lock.lock();
    } else if (round_->thread == std::this_thread::get_id()) {
      // This thread's round is still open: another callback at the end of backward() threw before
      // this reducer's ran. End the round now.
      lock.unlock();
      end_round();
      lock.lock();
    } else {
      round_over_.wait(lock);
    }
  }
}

// Whether the backward pass that has begun to gather still runs.
bool GradientReducer::Impl::is_gathering() const {
  return task_that_fits_ && runs(*task_that_fits_);
}

// Waits until the hook of a parameter may take part in the next round, and begins to gather that if
// it is the first. Throws if the parameter does not fit its bucket any more. Under the mutex.
void GradientReducer::Impl::join_round(size_t slot, int64_t task,
                                       std::unique_lock<std::mutex>& lock) {
  require_session();
  if (round_) wait_for_round(lock);
  if (broken_) return;
  await_end_of(task);
  if (task_that_fits_ != task && !is_gathering()) {
    begin_anew_after_join();
    if (!open_) {
      begin_gathering(task);
    } else if (all_fit()) {  // a later pass of the round: the buckets count on
      task_that_fits_ = task;
    }
  }
  if (task_that_fits_ == task) {
    if (!before_bucket) steady_task_ = task;
  } else if (!fits(slot)) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat(
                    "parameter \"", slots_[slot].name(), "\" changed its dtype, shape, layout or ",
                    "device between backward() and synchronize(); call synchronize() before that"));
  }
}

void GradientReducer::Impl::before_accumulate(size_t index) {
  if (!accumulation_will_follow()) return;
  GradientSlot& slot = slots_[index];
  const GradientSlot::Busy busy(slot);
  const int64_t task = BackwardEnds::current_task();
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!is_steady(task)) {
    lock.lock();
    join_round(index, task, lock);
    if (broken_) {
      if (settings_.wait_in == WaitIn::Backward) throw Error(*broken_);
      return;
    }
  }
  if (!std::exchange(slot.accumulating, true)) buckets_[slot.bucket_number].countdown.enter();
  slot.before_accumulate(weight_);
}

// Only the first gradient of a backward pass takes the lock.
void GradientReducer::Impl::arrived_alone(GradientSlot& slot) {
  if (!slot.arrived_alone()) return;
  const int64_t task = BackwardEnds::current_task();
  if (task_alone_ != task) {
    require_session();
    std::unique_lock lock(mutex_);
    if (round_) wait_for_round(lock);
    await_end_of(task);
    begin_anew_after_join();
    if (!open_) traces_ = records(timeline());
    task_alone_ = task;
  }
  note_time();
  if (*no_sync_depth_ == 0) ++slot.passes;
}

void GradientReducer::Impl::after_accumulate(size_t index) {
  if (is_broken_) return;
  GradientSlot& slot = slots_[index];
  const GradientSlot::Busy busy(slot);
  if (alone_) return arrived_alone(slot);
  GradientBucket& bucket = buckets_[slot.bucket_number];
  if (!std::exchange(slot.accumulating, true)) bucket.countdown.enter();
  const bool reduces = *no_sync_depth_ == 0;
  const GradientSlot::Arrival arrival = slot.after_accumulate(narrows_in_hooks_ && reduces);
  bucket.note_writer();
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!is_steady(BackwardEnds::current_task())) lock.lock();
  slot.accumulating = false;
  const bool came = arrival != GradientSlot::Arrival::Nothing && note_arrival(index, arrival);
  if (bucket.countdown.leave(came, reduces)) submit_complete(bucket);
}

// A gradient has come.
void GradientReducer::Impl::note_time() {
  const bool is_first = !open_ && !open_.exchange(true);
  if (!traces_) return;
  const Clock::time_point now = Clock::now();
  if (is_first) first_arrival_ = now;
  last_arrival_ = now;
}

// True if the bucket has waited for it.
bool GradientReducer::Impl::note_arrival(size_t index, GradientSlot::Arrival arrival) {
  note_time();
  if (arrival == GradientSlot::Arrival::Late) ++late_parts_;
  if (*no_sync_depth_ > 0) return false;
  arrivals_.note(index);
  GradientSlot& slot = slots_[index];
  return ++slot.passes == settings_.passes && slot.expected_in(number_.round);
}

// No other thread writes to the bucket, until its countdown hears that it is submitted.
void GradientReducer::Impl::submit_complete(GradientBucket& bucket) {
  struct Submitting {
    BucketCountdown& countdown;
    ~Submitting() { countdown.submitted(); }
  };
  const Submitting submitting{bucket.countdown};
  // The last bucket that this rank waits for is submitted at the end of backward() and not here, so
  // that its flags tell all that has come up until then. That end is near.
  const bool is_last = --buckets_to_go_ == 0;
  if (!is_last || !settings_.has_round_flags()) submit(bucket, /*flags_count=*/false);
  ++submitted_in_backward_;
}

void GradientReducer::Impl::task_found(int64_t task) {
  const std::lock_guard lock(mutex_);
  await_end_of(task);
}

// If several threads run backward(), the last one to end reduces: it finds all gradients.
bool GradientReducer::Impl::backward_ending() {
  if (settings_.wait_in == WaitIn::Step) return false;
  {
    const std::lock_guard lock(mutex_);
    if (!running_tasks_.empty() || broken_ || round_ || !open_) return false;
    if (*no_sync_depth_ > 0 || passes_missing()) return false;
    open_round();
  }
  begin_round_or_leave_it(/*early=*/false);
  return true;
}

void GradientReducer::Impl::backward_ended() {
  if (round_) end_round();
}

BucketView GradientReducer::Impl::view_of(const GradientBucket& bucket) const {
  BucketView view;
  view.index = static_cast<int64_t>(slots_[bucket.slots().front()].bucket_number);
  view.name = bucket.name();
  view.flat = bucket.flat();
  for (const size_t slot : bucket.slots()) view.parameters.push_back(slots_[slot].name());
  return view;
}

// True if it was submitted with a gradient of this rank.
bool GradientReducer::Impl::submit(GradientBucket& bucket, bool flags_count) {
  const PlainMode plain;
  const size_t parts = bucket.slots().size();
  std::vector<bool> absent;  // stays empty where nothing is absent
  size_t absent_count = 0;
  try {
    bucket.let_current_stream_wait_for_writers();
    if (equal_gradients_.watches()) see_gradients(bucket);
    for (size_t i = 0; i < parts; ++i) {
      if (slots_[bucket.slots()[i]].prepare_submission(weight_, before_bucket != nullptr)) continue;
      absent.resize(parts);
      absent[i] = true;
      ++absent_count;
    }
  } catch (...) {  // LibTorch's own errors too: the other ranks wait for the bucket
    bucket.refuse(core::current_error());
    throw;
  }
  if (absent_count < parts && !passes_checks(bucket, absent)) return false;
  if (bucket.narrows()) {
    for (const size_t slot : bucket.slots()) slots_[slot].narrow();
  }
  bucket.submit(std::move(absent), current_flags(), flags_count);
  return absent_count < parts;
}

// What fails here is thrown where the round ends (by default in backward()), on all ranks.
bool GradientReducer::Impl::passes_checks(GradientBucket& bucket, const std::vector<bool>& absent) {
  if (settings_.check_finite && bucket.reals() > 0 && !all_finite(bucket.flat())) {
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      const GradientSlot& slot = slots_[bucket.slots()[i]];
      if ((!absent.empty() && absent[i]) || all_finite(slot.view())) continue;
      bucket.refuse(gradient_not_finite(slot.name(), slot.view()));
      return false;
    }
  }
  if (!before_bucket) return true;
  try {
    before_bucket(view_of(bucket));
    return true;
  } catch (...) {
    bucket.refuse(Error(ErrorCode::InvalidArgument,
                        core::concat("before_bucket() of \"", bucket.name(), "\" on rank ", rank(),
                                     " threw: ", core::current_error().what())));
    return false;
  }
}

Hooks GradientReducer::Impl::hooks_needed() const {
  return alone_ ? Hooks::AfterAlone : Hooks::BeforeAndAfter;
}

void GradientReducer::Impl::set_weight(double weight) {
  if (!std::isfinite(weight) || weight < 0) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_weight() of \"", name_, "\": ", weight,
                             " is not a finite number of 0 or more"));
  }
  if (settings_.op != ReduceOp::Average) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_weight() of \"", name_, "\" needs op Average, but op is ",
                             to_string(settings_.op)));
  }
  if (on_reduced) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_weight() of \"", name_, "\": an AdaScale measures these ",
                             "gradients, which count alike there; leave out the weight or it"));
  }
  require_session();
  finish_given_up_round();
  begin_anew_after_join();
  if (open_) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("set_weight() of \"", name_, "\" was called after the gradient of \"",
                             unsynchronized_parameter(),
                             "\" had come; call it before the first backward() of the step"));
  }
  use_buckets();
  weight_ = weight;
}

std::string GradientReducer::Impl::unsynchronized_parameter() const {
  for (const GradientSlot& slot : slots_) {
    if (slot.fired()) return slot.name();
  }
  return {};
}

std::string GradientReducer::Impl::name_of(const at::Tensor& parameter) const {
  for (const GradientSlot& slot : slots_) {
    if (slot.parameter().is_same(parameter)) return slot.name();
  }
  return {};
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

}  // namespace horon
