// A round: what is not under way is submitted, everything is waited for, and every .grad becomes
// what a plain program would see.
#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon {

using namespace torch_detail;

void GradientReducer::Impl::synchronize(Passes passes) {
  if (broken_) throw Error(*broken_);
  require_session();
  if (!settings_.member) {
    if (number_.round++ == 1) ++statistics_.steps;
    return;
  }
  const PlainMode plain;
  // A backward() that was given up: with WaitIn::Step the others learn of it here, so this rank
  // throws here too. Where the round could not begin, this rank has thrown already.
  const bool has_thrown = round_ && (!round_->given_up || round_->has_thrown);
  if (settings_.wait_in == WaitIn::Backward || has_thrown) finish_given_up_round();
  if (take_unattended_round() || round_) end_round();
  begin_anew_after_join();
  const bool unreduced = number_.round == 1 || round_failed_;
  if (unreduced || open_ || round_is_due_) {
    {
      const std::lock_guard lock(mutex_);
      open_round();
    }
    begin_round_or_leave_it(unreduced && passes == Passes::All && passes_missing());
    end_round();
  }
  if (alone_) return;
  for (GradientSlot& slot : slots_) slot.put_back_older_value();
}

void GradientReducer::Impl::finish_step(Passes passes) {
  try {
    if (!reduced_by_graph()) synchronize(passes);
    rounds_in_step_ = std::max<int64_t>(number_.round - 1, 1);
  } catch (...) {
    (void)leave_step();
    throw;
  }
  next_step();
}

bool GradientReducer::Impl::leave_step() {
  if (round_ || round_failed_ || broken_) return false;
  if (number_.round > 1) next_step();
  return true;
}

// A step without a backward pass is a graph launch, on all ranks: so none of them reduces here.
bool GradientReducer::Impl::reduced_by_graph() const {
  return has_graphs_ && number_.round == 1 && !open_ && !round_ && !round_failed_ &&
         !round_is_due_ && !broken_;
}

void GradientReducer::Impl::next_step() {
  ++number_.step;
  number_.round = 1;
  weight_.reset();
  // Hooks may have been called since the last round without bringing a gradient.
  task_that_fits_.reset();
  steady_task_ = kNoTask;
  flags_.reset();
  if (arrivals_.watches()) learn_order();
  if (tunes_) tune();
}

void GradientReducer::Impl::count_gradients_as_new() {
  if (alone_) return;
  for (GradientSlot& slot : slots_) slot.count_as_new();
}

bool GradientReducer::Impl::changed_since_synchronize() const {
  return settings_.wait_in == WaitIn::Step && number_.round > 1 && open_ && !round_failed_;
}

bool GradientReducer::Impl::is_behind_a_round() const {
  const bool waited_for = settings_.shard_optimizer_state && changed_since_synchronize();
  return number_.round > 1 && (!open_ || waited_for) && ops::session_number() == session_;
}

// backward() has run less often than a step has passes.
bool GradientReducer::Impl::passes_missing() const {
  if (settings_.passes == 1) return false;
  const auto complete = [this](const GradientSlot& slot) {
    return slot.passes >= settings_.passes;
  };
  return std::none_of(slots_.begin(), slots_.end(), complete);
}

// Under the mutex. From here to the end of the round hooks of other threads wait.
void GradientReducer::Impl::open_round() {
  steady_task_ = kNoTask;
  OpenRound round;
  round.thread = std::this_thread::get_id();
  round.begin = Clock::now();
  if (const core::Timeline* const trace = timeline(); trace != nullptr)
    round.range = {trace->profiler(), "synchronize", name_};
  round.given_up = gave_up_;
  round_ = std::move(round);
}

// Submits everything, so that ranks that end several reducers in one backward() need not do so in
// the same order.
void GradientReducer::Impl::begin_round(bool early) {
  const PlainMode plain;
  totals_ = {};
  totals_.next_total = number_.total + 1;  // unless the ranks agree on another one
  scale_ = number_share_ = 1;
  round_->early = early;
  round_->is_captured = current_stream_is_captured(settings_.device);
  if (alone_) return;
  Failures& failures = round_->failures;
  if (round_->given_up) {
    // The others wait for the buckets that they have now.
    if (!open_) failures.run([&] { rebuild_if_changed(); });
    return refuse_rest(failures);
  }
  if (!settings_.device.is_cpu()) {
    round_->stream = current_stream(settings_.device);
    // Late parts may have been written in other streams, after their bucket was submitted.
    failures.run([&] {
      for (GradientBucket& bucket : buckets_) bucket.let_current_stream_wait_for_writers();
    });
  }
  failures.run([&] {
    check_left_out();
    if (!open_) rebuild_if_changed();
  });
  for (GradientSlot& slot : slots_) failures.run([&] { slot.inspect(weight_); });
  round_->has_news = early || failures.first() || LateParts::count(slots_) > 0;
  submit_rest(failures);
  if (!settings_.sparse_as_dense) {
    for (GradientSlot& slot : slots_) failures.run([&] { slot.collect_sparse(weight_); });
  }
  round_->failed = failures.first().has_value();
  if (!settings_.has_round_flags() || current_flags().asked()) announce(failures);
}

// Ends the round of a rank that reduces alone, which has nothing in flight.
void GradientReducer::Impl::end_round_alone() {
  const bool early = round_->early;
  bool removed = false;
  Failures failures;
  if (!settings_.process_set.is_world()) {
    failures.run([&] {
      const std::vector<ProcessSet> sets = process_sets();
      removed = std::none_of(sets.begin(), sets.end(),
                             [&](const ProcessSet& each) { return each.id() == settings_.set; });
    });
  }
  round_failed_ = early || removed || failures.first();
  has_graphs_ = has_graphs_ || (round_->is_captured && !round_failed_);
  task_alone_ = -1;
  for (GradientSlot& slot : slots_) slot.end_round_alone();
  close_round();
  if (failures.first()) throw Error(*failures.first());
  if (removed) {
    throw Error(
        ErrorCode::InvalidArgument,
        core::concat("\"", name_, "\": ", core::set_text(settings_.set), " has been removed"));
  }
  if (early) refuse_early_step(true);
}

void GradientReducer::Impl::close_round() {
  clear_round(round_->begin);
  {
    const std::lock_guard lock(mutex_);
    round_.reset();
  }
  round_over_.notify_all();
}

namespace {

// Most often the cause is a rank that has no more data.
Error with_cure(const Error& error, bool is_captured) {
  if (error.code() != ErrorCode::RankLeft || is_captured) return error;
  return Error(error.code(),
               core::concat(error.what(), " If that rank has run fewer steps, run equally many on ",
                            "all ranks, or call join() on each rank after its last step"));
}

}  // namespace

// Waits for all of it. Throws the first error when everything has ended.
void GradientReducer::Impl::end_round() {
  if (alone_) return end_round_alone();
  const PlainMode plain;
  Failures failures;
  Failures of_functions;  // of the program, on this rank alone
  try {
    (void)knows_whether_plain(std::nullopt);
    if (!*round_->is_plain && !round_->agreed) agree();
    failures = round_->failures;
    if (round_->agree_exception) std::rethrow_exception(round_->agree_exception);
    settle(failures, of_functions, round_->has_results);
    if (!failures.first()) failures = round_->of_others;
    round_failed_ = failures.first().has_value();
    if (round_->is_captured && !round_failed_) keep_memory_for_graphs();
    agree_first_ = !next_round_may_be_plain() || equal_gradients_.wants_round();
  } catch (...) {
    close_round();
    throw;
  }
  failures.run([&] { learn_sparse(); });  // while hooks of other threads still wait
  const bool is_captured = round_->is_captured;
  close_round();
  if (failures.first()) throw with_cure(*failures.first(), is_captured);
  if (of_functions.first()) throw Error(*of_functions.first());
}

void GradientReducer::Impl::submit_rest(Failures& failures) {
  const GradientBucket* last = nullptr;
  bool some_have_gone = false;
  for (const GradientBucket& bucket : buckets_) {
    if (bucket.is_sparse() || bucket.refusal) continue;
    if (bucket.handle == nullptr) last = &bucket;
    some_have_gone = some_have_gone || bucket.handle != nullptr;
  }
  // Buckets that were submitted before this news do not carry its flag. So a bucket that is reduced
  // for certain must: one with a gradient of this rank, else the last one.
  bool told = !some_have_gone || !round_->has_news;
  for (GradientBucket& bucket : buckets_) {
    if (bucket.handle != nullptr || bucket.refusal || bucket.is_sparse()) continue;
    failures.run([&] {
      const bool has_gradients = submit(bucket, !told && &bucket == last);
      told = told || has_gradients;
    });
  }
}

// The outcome of the bucket's reduction; throws what it has failed with.
core::Outcome GradientReducer::Impl::outcome_of(const GradientBucket& bucket) const {
  if (bucket.refusal) throw Error(*bucket.refusal);
  if (bucket.is_sparse()) {
    core::Outcome untouched;
    untouched.unused = true;
    return untouched;
  }
  if (bucket.handle == nullptr) {
    throw Error(ErrorCode::OperationFailed, "a gradient bucket could not be submitted");
  }
  const core::Outcome& outcome = outcome_in_order(*bucket.handle, settings_.device);
  bucket.note_reader();
  return outcome;
}

torch_detail::GradientSlot::Result GradientReducer::Impl::result_for(size_t slot, bool failed,
                                                                     bool unused, bool produced,
                                                                     Failures& failures) const {
  GradientSlot::Result result;
  result.failed = failed || late_.failed(slot) || !failures.run([&] { check_undisputed(slot); });
  result.discarded = late_.discarded(slot);
  result.late = late_.reduced(slot);
  result.unused = unused;
  result.produced = produced;
  return result;
}

void GradientReducer::Impl::settle(Failures& failures, Failures& of_functions, bool has_results) {
  for (GradientBucket& bucket : buckets_) {
    core::Outcome outcome;
    const bool arrived = failures.run([&] { outcome = outcome_of(bucket); });
    const bool failed = !arrived || !has_results;
    const bool unused = failed || outcome.unused;
    bool has_gradients = false;  // else it was submitted for its flags
    if (!unused) bucket.place_result();
    if (!unused && scale_ != 1) bucket.flat().mul_(scale_);
    if (on_reduced && !unused) on_reduced(view_of(bucket));
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      const size_t slot = bucket.slots()[i];
      const bool produced = !unused && (outcome.produced.empty() || outcome.produced[i]);
      has_gradients = has_gradients || produced;
      if (open_ && !round_->given_up) slots_[slot].learn_expectation(number_.round);
      if (produced && late_.empty()) {
        slots_[slot].settle_reduced();
      } else {
        slots_[slot].settle(result_for(slot, failed, unused, produced, failures));
      }
    }
    if (after_bucket && has_gradients) call_after_bucket(bucket, of_functions);
    if (!on_settled || after_bucket || unused) continue;
    for (const size_t slot : bucket.slots()) on_settled(slots_[slot].parameter());
  }
}

void GradientReducer::Impl::call_after_bucket(const GradientBucket& bucket, Failures& failures) {
  failures.run([&] {
    try {
      after_bucket(view_of(bucket));
    } catch (const Error&) {
      throw;
    } catch (...) {
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("after_bucket() of \"", bucket.name(), "\" on rank ", rank(),
                               " threw: ", core::current_error().what()));
    }
  });
}

void GradientReducer::Impl::clear_round(Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  statistics_.wait_seconds += std::chrono::duration<double>(end - begin).count();
  ++statistics_.steps;
  if (core::Timeline* const trace = traces_ ? timeline() : nullptr; trace != nullptr) {
    if (open_) trace->span("training", "backward", first_arrival_, last_arrival_, name_);
    trace->span("training", "synchronize", begin, end, name_);
  }
  forget_gathering();
  late_.clear();
  if (round_failed_) weight_.reset();
  if (arrivals_.watches() && (round_failed_ || round_->given_up)) watch_order();
  round_is_due_ = false;
  number_.total = totals_.next_total;
  // After a failure all ranks are where a step begins, also one that has made none of the others'
  // steps since, in join().
  number_.round = round_failed_ ? 1 : number_.round + 1;
}

// Puts the state back to: no gradient has come for the next round, and nothing is in flight.
void GradientReducer::Impl::forget_gathering() {
  for (GradientBucket& bucket : buckets_) {
    bucket.handle.reset();
    bucket.refusal.reset();
    bucket.countdown.reset();
  }
  for (GradientSlot& slot : slots_) {
    slot.passes = 0;
    slot.accumulating = false;
  }
  gave_up_ = false;
  flags_.reset();
  equal_gradients_.begin_round();
  task_that_fits_.reset();
  open_ = false;
}

std::optional<double> GradientReducer::Impl::reduce_number(
    const std::optional<double>& value) const {
  if (!settings_.member) return value;
  // The mean over no samples may be NaN.
  const double weighted = value && number_share_ != 0 ? *value * number_share_ : 0;
  const double counted = value ? number_share_ : 0;
  const auto numbers = std::make_shared<std::array<double, 4>>(
      std::array{weighted, number_share_, counted, value ? 1.0 : 0.0});
  const std::string name = name_of_number();
  const ReduceOp op = settings_.op == ReduceOp::Sum ? ReduceOp::Sum : ReduceOp::Average;
  (void)submit_in_place(
      settings_.set, name,
      flat_spec(number_spec(DataType::Float64, op), name, {static_cast<int64_t>(numbers->size())}),
      numbers->data(), numbers->size(), numbers)
      ->get();
  const auto [of_all, shares, shares_counted, any] = *numbers;
  if (any == 0) return std::nullopt;
  // A factor of 1, to the bit, where all ranks have a number.
  const bool is_mean_of_some = op == ReduceOp::Average && shares_counted != 0;
  return is_mean_of_some ? of_all * (shares / shares_counted) : of_all;
}

void GradientReducer::Impl::refuse_number(const std::string& why) const {
  if (settings_.member && is_initialized())
    ops::runtime().refuse(name_of_number(), why, settings_.set);
}

}  // namespace horon
