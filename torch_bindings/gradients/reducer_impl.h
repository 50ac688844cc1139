// The work of a GradientReducer. reducer_impl.cc has what happens in backward(), and
// reducer_impl_step.cc the end of a step.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/timeline.h"
#include "horon/torch_bindings/gradients/bucket.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/gradients/hooks.h"
#include "horon/torch_bindings/gradients/late_parts.h"
#include "horon/torch_bindings/gradients/plan.h"
#include "horon/torch_bindings/gradients/settings.h"
#include "horon/torch_bindings/gradients/slot.h"
#include "horon/torch_bindings/gradients/step_agreement.h"
#include "horon/torch_bindings/tensors/failures.h"

namespace horon::torch_detail {

// The public functions are those of GradientReducer.
class GradientEngine final : public GradientListener {
 public:
  using BucketFunction = std::function<void(const BucketView&)>;

  GradientEngine(const NamedTensors& parameters, const GradientReducerOptions& options);
  ~GradientEngine();
  GradientEngine(const GradientEngine&) = delete;
  GradientEngine& operator=(const GradientEngine&) = delete;

  void before_accumulate(size_t index) override;
  void after_accumulate(size_t index) override;
  void synchronize(GradientReducer::Passes passes);
  void add_parameters(const NamedTensors& parameters);
  void before_zeroing_in_place();
  std::string unsynchronized_parameter() const;
  void set_weight(double weight);
  double reduce_number(double value) const;

  const std::string& name() const { return name_; }
  const GradientStatistics& statistics() const { return statistics_; }
  const std::shared_ptr<std::atomic<int>>& no_sync_depth() const { return no_sync_depth_; }

  BucketFunction before_bucket;
  BucketFunction after_bucket;

 private:
  using Clock = core::Timeline::Clock;

  // reducer_impl.cc
  SlotGroups groups() const;
  void make_buckets(size_t first_slot);
  void rebuild(std::vector<GradientLayout> layouts);
  void rebuild_if_changed();
  void begin_step(GradientBucket& bucket);
  void mark_arrival(GradientSlot& slot, GradientSlot::Arrival arrival);
  void submit(GradientBucket& bucket);
  bool passes_checks(GradientBucket& bucket, const std::vector<bool>& absent);
  BucketView view_of(const GradientBucket& bucket) const;

  // reducer_impl_step.cc
  void submit_rest(Failures& failures);
  bool is_early() const;
  void run_step(Failures& failures, bool early);
  bool agree(Failures& failures, bool early);
  void use_weights();
  [[noreturn]] void refuse_early_step(bool early);
  void check_undisputed(size_t slot) const;
  core::Outcome outcome_of(const GradientBucket& bucket) const;
  void settle(Failures& failures, bool has_results);
  void call_after_bucket(const GradientBucket& bucket, Failures& failures);
  void learn_sparse();
  void end_step(Clock::time_point begin);

  const GradientReducerOptions options_;
  const GradientSettings settings_;
  const std::string name_;
  const double destroy_timeout_s_;
  const bool has_timeline_;  // false: no clock is read in hooks

  std::deque<GradientSlot> slots_;  // in the order of registration; addresses stay
  std::vector<GradientLayout> layouts_;
  std::deque<GradientBucket> buckets_;
  std::unordered_set<const void*> known_;
  UniqueNames names_;
  std::optional<StepAgreement> agreement_;
  LateParts late_;
  std::vector<HookedParameter> hooks_;
  std::optional<Error> broken_;  // ranks have different plans: there is no way on

  std::mutex mutex_;               // hooks of different parameters may run on different threads
  std::atomic<bool> open_{false};  // a gradient has come since the last synchronize()
  std::shared_ptr<std::atomic<int>> no_sync_depth_;
  Clock::time_point first_arrival_, last_arrival_;

  std::optional<double> weight_;  // of this step
  StepTotals totals_;
  double scale_ = 1;         // what results of this step are multiplied by
  double number_share_ = 1;  // of the last step: what reduce_number() multiplies by
  GradientStatistics statistics_;
};

}  // namespace horon::torch_detail
