// The end of a step: what is not under way is submitted, everything is waited for, and every .grad
// becomes what a plain program would see.
#include <algorithm>
#include <exception>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::torch_detail {

void GradientEngine::synchronize(GradientReducer::Passes passes) {
  if (broken_) throw Error(*broken_);
  if (!settings_.member) {
    ++statistics_.steps;
    return;
  }
  const Clock::time_point begin = Clock::now();
  const PlainMode plain;
  if (!open_) rebuild_if_changed();
  Failures failures;
  run_step(failures, passes == GradientReducer::Passes::All && is_early());
  end_step(begin);
  learn_sparse();
  if (failures.first()) throw Error(*failures.first());
}

// backward() has run less often than a step has passes.
bool GradientEngine::is_early() const {
  if (settings_.passes == 1) return false;
  const auto complete = [this](const GradientSlot& slot) {
    return slot.passes >= settings_.passes;
  };
  return std::none_of(slots_.begin(), slots_.end(), complete);
}

void GradientEngine::submit_rest(Failures& failures) {
  for (GradientBucket& bucket : buckets_) {
    if (bucket.handle != nullptr || bucket.refusal || bucket.is_sparse()) continue;
    failures.run([&] { submit(bucket); });
  }
}

void GradientEngine::run_step(Failures& failures, bool early) {
  late_.clear();
  totals_ = {};
  scale_ = number_share_ = 1;
  for (GradientSlot& slot : slots_) failures.run([&] { slot.inspect(weight_); });
  submit_rest(failures);
  for (GradientSlot& slot : slots_) failures.run([&] { slot.collect_sparse(weight_); });
  // Before anything is waited for: the answer comes with the last bucket.
  const StepFacts facts{LateParts::count(slots_), early, weight_};
  bool has_results = failures.run([&] { agreement_->announce(facts); });
  if (has_results) has_results = agree(failures, early);
  settle(failures, has_results);
}

// False: the ranks can't make use of what has been reduced.
bool GradientEngine::agree(Failures& failures, bool early) {
  Failures agreement;
  if (!agreement.run([&] { totals_ = agreement_->agree(); })) {
    failures.run([&] { throw Error(*agreement.first()); });
    if (agreement.first()->code() != ErrorCode::Mismatch) return true;
    // Buckets that other ranks do not have would never end.
    broken_ = agreement.first();
    for (GradientSlot& slot : slots_) slot.abandon(false);
    throw Error(*broken_);
  }
  const bool weighted = failures.run([&] { use_weights(); });
  failures.run([&] {
    if (totals_.late == 0) return;
    late_.agree(slots_);
    late_.wait(scale_);
  });
  if (totals_.early > 0) failures.run([&] { refuse_early_step(early); });
  return weighted;
}

void GradientEngine::use_weights() {
  if (totals_.weighted == 0) return;
  if (totals_.weighted != totals_.participants) {
    const std::string ranks = agreement_->ranks_that(!weight_);
    throw Error(ErrorCode::Mismatch,
                core::concat("\"", name_, "\": ", ranks, " gave no weight (set_weight()), and ",
                             "others did; in a step all ranks give one, or none"));
  }
  if (totals_.weight == 0) return;  // no rank had anything
  // The reduction has divided by the number of ranks.
  scale_ = totals_.participants / totals_.weight;
  number_share_ = *weight_ * scale_;
}

void GradientEngine::refuse_early_step(bool early) {
  const std::string ranks = agreement_->ranks_that(early);
  throw Error(ErrorCode::InvalidArgument,
              core::concat("\"", name_, "\": step() came on ", ranks, " before ",
                           "backward_passes_per_step = ", settings_.passes, " backward passes; ",
                           "run the others first, or call synchronize() before step() to take a ",
                           "step with what there is. The parameters have not moved"));
}

void GradientEngine::check_undisputed(size_t slot) const {
  if (!late_.disputed(slot)) return;
  throw Error(ErrorCode::InvalidArgument,
              core::concat("gradient of \"", slots_[slot].name(), "\": one rank has dropped it ",
                           "(zero_grad()) while it was being reduced, and another has not, or had ",
                           "not begun; call synchronize() before zero_grad()"));
}

// The outcome of the bucket's reduction; throws what it has failed with.
core::Outcome GradientEngine::outcome_of(const GradientBucket& bucket) const {
  if (bucket.refusal) throw Error(*bucket.refusal);
  if (bucket.is_sparse()) {
    core::Outcome untouched;
    untouched.unused = true;
    return untouched;
  }
  if (bucket.handle == nullptr) {
    throw Error(ErrorCode::OperationFailed, "a gradient bucket could not be submitted");
  }
  return bucket.handle->get();
}

void GradientEngine::settle(Failures& failures, bool has_results) {
  for (GradientBucket& bucket : buckets_) {
    core::Outcome outcome;
    const bool arrived = failures.run([&] { outcome = outcome_of(bucket); });
    const bool failed = !arrived || !has_results;
    if (!failed && !outcome.unused && scale_ != 1) bucket.flat().mul_(scale_);
    for (size_t i = 0; i < bucket.slots().size(); ++i) {
      const size_t slot = bucket.slots()[i];
      GradientSlot::Result result;
      result.failed =
          failed || late_.failed(slot) || !failures.run([&] { check_undisputed(slot); });
      result.discarded = late_.discarded(slot);
      result.late = late_.reduced(slot);
      result.unused = failed || outcome.unused;
      result.produced = !result.unused && (outcome.produced.empty() || outcome.produced[i]);
      slots_[slot].expected = open_ ? slots_[slot].fired() : slots_[slot].expected;
      slots_[slot].settle(result);
    }
    if (after_bucket && !failed && !outcome.unused) call_after_bucket(bucket, failures);
  }
}

void GradientEngine::call_after_bucket(const GradientBucket& bucket, Failures& failures) {
  failures.run([&] {
    try {
      after_bucket(view_of(bucket));
    } catch (const Error&) {
      throw;
    } catch (const std::exception& exception) {
      throw Error(ErrorCode::InvalidArgument,
                  core::concat("after_bucket() of \"", bucket.name(), "\" on rank ", rank(),
                               " has thrown: ", exception.what()));
    }
  });
}

// Gradients that have been sparse on all ranks are expected to be so again: they need no bucket.
void GradientEngine::learn_sparse() {
  if (settings_.sparse_as_dense) return;
  bool learned = false;
  std::vector<GradientLayout> layouts = layouts_;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const at::Tensor reduced = late_.reduced(i);
    if (layouts[i].sparse || !reduced.defined() || reduced.layout() == at::kStrided) continue;
    const at::Tensor& grad = slots_[i].parameter().grad();  // undefined after a failure
    if (!grad.defined() || grad.layout() == at::kStrided) continue;
    layouts[i].sparse = learned = true;
  }
  if (learned) rebuild(std::move(layouts));
}

void GradientEngine::end_step(Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  statistics_.wait_seconds += std::chrono::duration<double>(end - begin).count();
  ++statistics_.steps;
  core::Timeline* const timeline =
      has_timeline_ && is_initialized() ? ops::runtime().timeline() : nullptr;
  if (timeline != nullptr) {
    if (open_) timeline->span("training", "backward", first_arrival_, last_arrival_, name_);
    timeline->span("training", "synchronize", begin, end, name_);
  }
  for (GradientBucket& bucket : buckets_) begin_step(bucket);
  open_ = false;
  weight_.reset();
}

double GradientEngine::reduce_number(double value) const {
  if (!settings_.member) return value;
  // The mean over no samples may be NaN.
  value = number_share_ == 0 ? 0 : value * number_share_;
  auto memory = std::make_shared<double>(value);
  const std::string name = name_ + ".number";
  const ReduceOp op = settings_.op == ReduceOp::Sum ? ReduceOp::Sum : ReduceOp::Average;
  (void)submit_in_place(settings_.set, name,
                        flat_spec(number_spec(DataType::Float64, op), name, {1}), memory.get(), 1,
                        memory)
      ->get();
  return *memory;
}

}  // namespace horon::torch_detail
