// The work of a GradientReducer. reducer_impl.cc has what happens while backward() runs,
// reducer_round.cc the reduction of all buckets, reducer_given_up.cc what becomes of it after an
// exception, reducer_after_join.cc what becomes of a step that a join() has ended,
// reducer_agreement.cc what the ranks tell each other in a round, reducer_buckets.cc which
// gradients share a bucket, reducer_order.cc how the reducer learns to put gradients that come one
// after another into one, and reducer_tuning.cc how the sizes of buckets change while training goes
// on.
//
// A round reduces every bucket once. Ranks run the same rounds: one at the end of each backward()
// (with WaitIn::Step, one in each synchronize()), and one in synchronize() if the step had none.
//
// Threads: hooks of different parameters may run on different threads. Between the two hooks of a
// parameter autograd adds to its .grad; its bucket is not submitted in that time
// (bucket_countdown.h). The first hook of a backward pass takes `mutex_`, which guards what else
// they share; those after it need no lock (steady_task_), unless before_bucket is set, which is the
// program's and called by one thread at a time. While a round ends, hooks of other threads wait.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include <c10/core/Stream.h>

#include "horon/core/base/error.h"
#include "horon/core/base/kept_heap.h"
#include "horon/core/base/timeline.h"
#include "horon/torch_bindings/gradients/backward_ends.h"
#include "horon/torch_bindings/gradients/bucket.h"
#include "horon/torch_bindings/gradients/bucket_order.h"
#include "horon/torch_bindings/gradients/bucket_tuner.h"
#include "horon/torch_bindings/gradients/equal_gradients.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/gradients/hooks.h"
#include "horon/torch_bindings/gradients/late_parts.h"
#include "horon/torch_bindings/gradients/plan.h"
#include "horon/torch_bindings/gradients/replica_check.h"
#include "horon/torch_bindings/gradients/round_agreement.h"
#include "horon/torch_bindings/gradients/settings.h"
#include "horon/torch_bindings/gradients/slot.h"
#include "horon/torch_bindings/tensors/failures.h"

namespace horon {

// The public functions are those of GradientReducer.
class GradientReducer::Impl final : public torch_detail::GradientListener,
                                    public torch_detail::BackwardListener {
 public:
  using BucketFunction = std::function<void(const BucketView&)>;

  Impl(const NamedTensors& parameters, const GradientReducerOptions& options,
       std::shared_ptr<const torch_detail::ShardOwners> owners);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // GradientListener
  void before_accumulate(size_t index) override;
  void after_accumulate(size_t index) override;
  // BackwardListener
  void task_ended(int64_t task) noexcept override;
  void task_given_up(int64_t task) noexcept override;
  bool backward_ending() override;
  void backward_ended() override;
  std::optional<bool> must_agree(std::chrono::nanoseconds limit) override;
  void agree() noexcept override;
  void task_found(int64_t task) override;
  const std::string& order() const override { return order_; }

  // Runs the round that is still missing in this step, if one is.
  void synchronize(Passes passes);
  // What comes from now on belongs to the next step.
  void next_step();
  // synchronize() and next_step(). An error of this rank alone (of a function of the program) does
  // not keep it in the step while the others go on.
  void finish_step(Passes passes);
  // After an exception. True: it is of this rank alone, the others go on from their last round, and
  // this rank's step is over too.
  bool leave_step();
  void begin_evaluation();
  bool leave_evaluation(bool has_reduced);
  void add_parameters(const NamedTensors& parameters);
  // Gradients pass through buckets from now on, also where this rank reduces alone.
  void use_buckets();
  void before_zeroing_in_place();
  void count_gradients_as_new();
  std::string unsynchronized_parameter() const;
  bool has_name(const std::string& name) const;
  std::string name_of(const at::Tensor& parameter) const;
  // A gradient has come since the step was synchronized, and nothing will reduce it by itself.
  bool changed_since_synchronize() const;
  // A join() has ended the step that this rank was in.
  void note_joins();
  // A round of this step has ended, and no gradient has come since. Where the optimizer's state is
  // shared out, also if one has come that only synchronize() reduces: the others, which have none,
  // wait for this rank's part of the step.
  bool is_behind_a_round() const;
  void set_weight(double weight);
  const std::optional<double>& weight() const { return weight_; }
  void set_passes(int passes);
  std::optional<double> reduce_number(const std::optional<double>& value) const;
  void refuse_number(const std::string& why) const;
  const GradientReducerOptions& options() const { return options_; }
  bool is_mixed() const { return settings_.mixed; }
  // Throws Error(InvalidArgument) naming the call if this rank gets only some of the gradients.
  void require_whole_gradients(const char* call) const;
  // The optimizer's step was made in one pass that rounds otherwise: on all ranks, or on none,
  // except in mixed sets, where each device rounds in its own way.
  void note_step(bool rounded_otherwise) {
    step_rounded_otherwise_ = rounded_otherwise && !settings_.mixed;
  }

  const std::string& name() const { return name_; }
  std::string name_of_number() const { return name_ + ".number"; }
  GradientStatistics statistics() const {
    GradientStatistics all = statistics_;
    all.submitted_in_backward = submitted_in_backward_;
    all.late_parts = late_parts_;
    return all;
  }
  const std::shared_ptr<std::atomic<int>>& no_sync_depth() const { return no_sync_depth_; }

  BucketFunction before_bucket;
  BucketFunction on_reduced;  // Horon's own; scaled_steps.h
  BucketFunction after_bucket;
  // Called when a parameter's .grad is final, while later buckets may still travel. Not called if
  // after_bucket is set, which could still change gradients. Null: none.
  std::function<void(const at::Tensor& parameter)> on_settled;

 private:
  using Clock = core::Timeline::Clock;
  using Failures = torch_detail::Failures;
  using GradientBucket = torch_detail::GradientBucket;
  using GradientLayout = torch_detail::GradientLayout;
  using GradientSlot = torch_detail::GradientSlot;

  static constexpr const char* kBackward = "backward()";

  // From the submission of all that is left to the end of the round.
  struct OpenRound {
    std::thread::id thread;
    Clock::time_point begin;
    core::LiveRange range;              // for a profiler
    std::optional<c10::Stream> stream;  // on a GPU: the current one of that thread
    Failures failures;
    Failures of_others;  // reported by other ranks; used if this rank has none of its own
    bool early = false;
    bool is_captured = false;  // in a graph, on this rank
    bool given_up = false;     // an exception has ended `ended` on this rank
    const char* ended = kBackward;
    bool has_thrown = false;       // that exception has left a step that all ranks were in
    bool unattended = false;       // no thread is about to end it
    bool failed = false;           // on this rank, before the others were told
    bool has_news = false;         // to agree on, that this rank's first buckets did not announce
    bool announced = false;        // the ranks agree in this round
    std::optional<bool> is_plain;  // empty: not known yet
    bool agreed = false;           // agree() has run
    bool has_results = false;      // the ranks can make use of what has been reduced
    std::exception_ptr agree_exception;  // what agree() has ended with
  };
  // What all ranks have said with the buckets.
  struct Heard {
    bool all = false;  // none has failed
    torch_detail::RoundFlags flags;
    int participants = 1;
  };

  // reducer_buckets.cc
  torch_detail::SlotGroups groups() const;
  torch_detail::SlotGroups bucket_slots() const;
  void sort_by_owner(std::vector<size_t>& slots) const;
  std::vector<int64_t> shares_of(const std::vector<size_t>& slots) const;
  void make_buckets(size_t first_slot);
  std::vector<GradientLayout> current_layouts() const;
  void refuse_new_buckets_in_capture(const std::vector<GradientLayout>& layouts) const;
  void check_left_out() const;
  void rebuild(std::vector<GradientLayout> layouts);
  void rebuild_if_changed();
  void catch_up_with_buckets();
  void keep_memory_for_graphs();
  void learn_sparse();

  // reducer_impl.cc
  torch_detail::Hooks hooks_needed() const;
  void arrived_alone(GradientSlot& slot);
  bool runs(int64_t task) const;
  void await_end_of(int64_t task);
  bool forget_task(int64_t task);
  void wait_for_round(std::unique_lock<std::mutex>& lock);
  void begin_gathering(int64_t task);
  bool fits(size_t slot) const;
  bool all_fit() const;
  int64_t expect(GradientBucket& bucket);
  bool is_steady(int64_t task) const { return steady_task_ == task; }
  bool is_gathering() const;
  void join_round(size_t slot, int64_t task, std::unique_lock<std::mutex>& lock);
  void note_time();
  bool note_arrival(size_t index, GradientSlot::Arrival arrival);
  void submit_complete(GradientBucket& bucket);
  bool submit(GradientBucket& bucket, bool flags_count);
  bool passes_checks(GradientBucket& bucket, const std::vector<bool>& absent);
  BucketView view_of(const GradientBucket& bucket) const;

  // reducer_round.cc
  bool reduced_by_graph() const;
  void open_round();
  void begin_round(bool early);
  void end_round();
  void submit_rest(Failures& failures);
  bool passes_missing() const;
  core::Outcome outcome_of(const GradientBucket& bucket) const;
  GradientSlot::Result result_for(size_t slot, bool failed, bool unused, bool produced,
                                  Failures& failures) const;
  void settle(Failures& failures, Failures& of_functions, bool has_results);
  void call_after_bucket(const GradientBucket& bucket, Failures& failures);
  void clear_round(Clock::time_point begin);
  void forget_gathering();
  void close_round();
  void end_round_alone();

  // reducer_given_up.cc
  void finish_given_up_round();
  void give_up(std::unique_lock<std::mutex>& lock, const char* what) noexcept;
  void begin_round_or_leave_it(bool early);
  void leave_round_unattended() noexcept;
  void refuse_rest(Failures& failures);
  bool take_unattended_round();

  // reducer_after_join.cc
  void begin_anew_after_join();
  void require_session() const;

  // reducer_agreement.cc
  void raise_flags();
  torch_detail::RoundFlags current_flags();
  void announce(Failures& failures);
  std::optional<Heard> hear(std::optional<std::chrono::nanoseconds> limit) const;
  bool knows_whether_plain(std::optional<std::chrono::nanoseconds> limit);
  bool next_round_may_be_plain() const;
  bool use_agreement();
  Error plans_differ(const Error& error) const;
  [[noreturn]] void break_down(const Error& error);
  [[noreturn]] void refuse_round_number();
  [[noreturn]] void refuse_failed_ranks();
  void compare_replicas();
  void see_gradients(const GradientBucket& bucket);
  void hear_of_gradients();
  void use_weights();
  void refuse_weight_that_has_left() const;
  [[noreturn]] void refuse_unlike_steps();
  [[noreturn]] void refuse_early_step(bool early);
  void check_undisputed(size_t slot) const;

  // reducer_order.cc
  void add_to_order();
  void watch_order();
  // Functions of the program may keep something for each bucket, as long as there are any.
  bool has_functions() const { return before_bucket || after_bucket; }
  bool wants_order() const { return wished_order_ && !has_functions(); }
  void learn_order();
  void hear_of_order();

  // reducer_tuning.cc
  void tune();
  void wait_until_functions_are_gone();
  void hear_of_bytes();
  static core::Timeline* timeline();  // of the session; null without one
  void restart_tuning();

  GradientReducerOptions options_;
  torch_detail::GradientSettings settings_;
  const std::string name_;
  const std::string order_;
  const double destroy_timeout_s_;
  const uint32_t session_;
  // Whether a timeline records this round, as of its first gradient; false: no clock is read in
  // hooks.
  std::atomic<bool> traces_{false};
  bool alone_;  // there is nobody to reduce with, and nothing to do to gradients

  std::deque<GradientSlot> slots_;  // in the order of registration; addresses stay
  std::vector<GradientLayout> layouts_;
  std::deque<GradientBucket> buckets_;
  std::vector<at::Tensor> memory_of_graphs_;
  std::unordered_set<const void*> known_;
  NamedTensors left_out_;  // frozen ones of a dtype that buckets don't take
  torch_detail::UniqueNames names_;
  std::optional<torch_detail::RoundAgreement> agreement_;
  torch_detail::LateParts late_;
  std::vector<torch_detail::HookedParameter> hooks_;
  std::optional<Error> broken_;         // the ranks' programs or plans differ: there is no way on
  std::atomic<bool> is_broken_{false};  // for those that don't hold mutex_

  std::mutex mutex_;
  std::condition_variable round_over_;
  torch_detail::BackwardEnds ends_;
  std::vector<int64_t> running_tasks_;         // backward passes in which a hook was called
  bool gave_up_ = false;                       // an exception has ended one, in this round
  std::atomic<bool> narrows_in_hooks_{false};  // the gradients of this round
  // The backward pass whose hooks need no lock: its end is awaited, its parameters fit their
  // buckets, and its hooks call no function of the program.
  static constexpr int64_t kNoTask = std::numeric_limits<int64_t>::min();
  std::atomic<int64_t> steady_task_{kNoTask};
  int64_t rounds_in_step_ = 1;             // of the last step that was made
  std::atomic<int64_t> buckets_to_go_{0};  // that wait for gradients in this round
  // A backward pass that began when no other of these ran, and all parameters fitted their buckets:
  // a program changes them between two passes, so its hooks need not look again.
  std::optional<int64_t> task_that_fits_;
  std::atomic<bool> open_{false};        // a gradient has come since the last round
  std::atomic<int64_t> task_alone_{-1};  // the backward pass that has set open_ where alone_
  std::shared_ptr<std::atomic<int>> no_sync_depth_;
  std::optional<core::KeptHeap> kept_heap_;  // the hooks free gradients during backward
  std::atomic<Clock::time_point> first_arrival_, last_arrival_;  // noted where traces_

  std::optional<OpenRound> round_;
  torch_detail::RoundNumber number_;  // of the next round
  uint64_t joins_;                    // of the process set, that have ended
  bool agree_first_ = true;           // in the next round, without waiting for the buckets before
  // Guards the making of flags_ and fingerprint_: hooks of several threads submit buckets.
  std::mutex flags_mutex_;
  // What this rank says in this round; empty until its first bucket goes.
  std::optional<torch_detail::RoundFlags> flags_;
  bool round_failed_ = false;     // the last one, on all ranks
  bool has_graphs_ = false;       // of rounds with these buckets: each launch is one
  bool round_is_due_ = false;     // of parameters that may have had gradients when they were added
  std::optional<double> weight_;  // of this step
  bool step_rounded_otherwise_ = false;  // the last one
  torch_detail::RoundTotals totals_;
  torch_detail::ReplicaCheck replicas_;
  uint64_t fingerprint_ = 0;  // of this rank's parameters when flags_ were raised
  torch_detail::LookSchedule looks_;
  torch_detail::EqualGradients equal_gradients_;
  torch_detail::ArrivalOrder arrivals_;              // on the rank that decides, until it has
  std::vector<size_t> slot_order_;                   // of buckets_; empty: reverse of slots_
  std::optional<std::vector<size_t>> wished_order_;  // that all ranks are to hear of
  std::optional<std::vector<size_t>> next_order_;    // all use it from the next round on
  bool tunes_;                        // this rank decides for all of them, and has not yet
  bool waits_for_functions_ = false;  // has been said
  std::optional<torch_detail::BucketTuner> tuner_;
  std::optional<torch_detail::BucketBytes> wished_bytes_;  // that all ranks are to hear of
  std::optional<torch_detail::BucketBytes> next_bytes_;    // all use them from the next round on
  double scale_ = 1;         // what results of this round are multiplied by
  double number_share_ = 1;  // of the last round: what reduce_number() multiplies by
  GradientStatistics statistics_;
  std::atomic<int64_t> submitted_in_backward_{0}, late_parts_{0};
};

}  // namespace horon
