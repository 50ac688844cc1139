// One parameter's gradient on its way through a round: what .grad is, what the bucket holds, and
// what came too late for it.
//
// A round in states:
//
//   Idle      no gradient has come. .grad is undefined, or holds an older value.
//   Filled    the bucket holds the gradient and .grad is the view of it: autograd adds further
//             gradients to it in place, as in a plain program. (Narrowed, or with a graph, the
//             gradient itself stays in .grad.)
//   Absent    the bucket has been submitted, with nothing of this rank. .grad is undefined.
//   Reducing  the bucket has been submitted, with a value of this rank. .grad is the view.
//   Dropped   the same, and the program has dropped or replaced .grad since (zero_grad(), a tensor
//             of its own; only WaitIn::Step leaves it the time). All ranks must do so: a sum can't
//             be freed of one rank's share.
//
// The submission leads from the first two to Absent or Reducing, settle() from any state to Idle.
//
// Once the bucket has been submitted nobody may write to its memory. Then before_accumulate() takes
// the view out of .grad, autograd hands over the new gradient alone, and after_accumulate() puts
// the view back and adds the gradient to the late part, which is reduced by itself at the end of
// the round. With WaitIn::Backward this happens where one backward() calls the hooks of a parameter
// several times (recomputation): the next backward() finds the slot Idle and .grad reduced.
//
// A gradient that is sparse and is to stay so never enters the bucket: it stays in .grad until the
// end of the round, and is then reduced by itself.
//
// Most gradients need no more than the state. What the others need is in Extras.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "horon/core/base/entry_spec.h"
#include "horon/torch_bindings/gradients/bucket.h"
#include "horon/torch_bindings/gradients/settings.h"

namespace horon::torch_detail {

// The value that a rank without a gradient contributes for an element.
double neutral_element(ReduceOp op);

// Copies values, whatever the layout and dtype of the source (sparse too). Same shape.
void assign_values(const at::Tensor& to, const at::Tensor& from);

// Not thread-safe, except that two threads in the hooks of one parameter are detected.
class GradientSlot {
 public:
  enum class State : uint8_t { Idle, Filled, Absent, Reducing, Dropped };
  enum class Arrival : uint8_t { Nothing, First, Again, Late };

  // The settings outlive it.
  GradientSlot(std::string name, at::Tensor parameter, const GradientSettings& settings);

  // The memory that .grad lives in from now on; Idle only. Values that .grad has in the memory of
  // the bucket before move along.
  void move_to(const GradientBucket& bucket, size_t part);

  // The parameter has still the dtype, shape and strides that the bucket was made for. False: ask
  // GradientLayout::fits().
  bool fits() const { return part_.lies_alike(parameter_); }

  // Hooks. Throw Error(InvalidArgument) naming the parameter.
  void before_accumulate(std::optional<double> weight);
  // `narrow`: where the bucket narrows, the gradient may go there at once.
  Arrival after_accumulate(bool narrow);
  // The only hook of a rank that reduces alone. True if a gradient has come.
  bool arrived_alone();
  // The end of its round.
  void end_round_alone() { fired_ = false; }
  // Between rounds: a value in .grad moves to the memory of the bucket.
  void adopt_older_value();
  // Between rounds: what .grad holds of an earlier one counts as a gradient of this rank's in the
  // next, and not as a value that all have.
  void count_as_new();
  // Idle, and no round follows: what a hook has done to an older value is undone.
  void put_back_older_value() {
    if (has_older() && state_ == State::Idle && !was_kept(grad())) undo_older_value();
  }

  // What was in .grad before this step counts no more.
  void forget_older();
  // The program zeroes .grad in place, and means what is kept aside of it, too.
  void zeroed_in_place();

  // The bucket is about to be submitted: makes its memory hold this rank's contribution. False: it
  // has none, and the memory holds the neutral element (or an older value that is still in .grad).
  // `weight`: the contribution is multiplied by it; 0: there is none. `is_shown`: the program looks
  // at the memory before it travels.
  bool prepare_submission(std::optional<double> weight, bool is_shown);
  // Called next, if the bucket narrows: writes the contribution into the memory that travels, too.
  void narrow() {
    if (!narrowed_) part_.narrow(view_, view_);
  }

  // The end of a round begins: puts a parked view back, and finds out what the program has done to
  // .grad since the bucket was submitted. Throws Error(InvalidArgument) if it was written to while
  // it was being reduced. `weight`: as above, for the late part.
  void inspect(std::optional<double> weight);
  // After inspect(), and after all buckets have been submitted: what is to be reduced sparsely.
  void collect_sparse(std::optional<double> weight);

  struct Result {
    bool failed = false;     // there is no result
    bool unused = false;     // no rank contributed to the whole bucket: memory is as it was
    bool produced = true;    // some rank contributed
    bool discarded = false;  // the programs of the ranks dropped what the bucket held
    // The reduced late parts of all ranks, sparse if all were, or undefined.
    at::Tensor late;
  };
  // Makes .grad what a plain program would see, or undefined where another rank gets the result;
  // and the slot Idle.
  void settle(const Result& result);
  // The same for Result{}: some rank contributed, and there is nothing beside the bucket.
  void settle_reduced();
  // The round will not take place: what has been gathered counts as a gradient of this rank's in
  // the next one, from memory of its own. Not after the submission.
  void gather_anew();
  // The same after the submission: nothing of it counts. An older value that was kept aside stays.
  void leave_submitted();
  // Without a result: the round is given up. Unless `finished`, .grad leaves the bucket's memory.
  void abandon(bool finished);

  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  const at::Tensor& view() const { return view_; }
  // Something of this rank is to be reduced apart from the bucket, or was dropped by the program.
  bool has_late_part() const { return discarded() || has_late() || sparse_is_new(); }
  at::Tensor late() const { return extras_ ? extras_->late : at::Tensor(); }
  // This rank's sparse gradient, coalesced; undefined if it has none.
  at::Tensor sparse() const { return extras_ ? extras_->sparse : at::Tensor(); }
  // It is more than what an earlier step left in .grad.
  bool sparse_is_new() const {
    return extras_ && extras_->sparse.defined() && !extras_->sparse_is_older;
  }
  bool is_submitted() const { return state_ >= State::Absent; }
  bool discarded() const { return state_ == State::Dropped; }
  // The bucket that was submitted holds something of this rank, and the program has not dropped it.
  bool counts_in_bucket() const { return state_ == State::Reducing && has_weight_; }
  bool fired() const { return fired_; }

  // Whether the bucket waits for this one before it is submitted: if it came in the same round of
  // an earlier step. Rounds are counted from 1 in each step.
  bool expected_in(int64_t round) const { return (expected_ & round_bit(round)) != 0; }
  void expect_in_all_rounds(bool expected) { expected_ = expected ? 0xff : 0; }
  void learn_expectation(int64_t round) {
    const uint8_t bit = round_bit(round);
    expected_ = static_cast<uint8_t>(fired_ ? expected_ | bit : expected_ & ~bit);
  }

  // The owner's notes.
  // Autograd is between the two hooks: it may be adding to .grad. Its thread alone.
  bool accumulating = false;
  // The owner's number of the bucket.
  size_t bucket_number = 0;
  // How often a gradient came that counts, in this round.
  int passes = 0;

  // Throws if another thread is in a hook of this parameter.
  class Busy {
   public:
    explicit Busy(GradientSlot& slot) : slot_(slot) {
      if (slot_.busy_.test_and_set(std::memory_order_acquire)) slot_.refuse_second_thread();
    }
    ~Busy() { slot_.busy_.clear(std::memory_order_release); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    GradientSlot& slot_;
  };

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  // What few gradients need, from when it is needed to the end of the round.
  struct Extras {
    // .grad held a value before this round. The memory of the bucket holds it still, times
    // settings_.older_share; or it is kept aside (adds_older_value()).
    bool has_older = false;
    // A copy of it: kept aside, or where this rank's weight must not change it.
    at::Tensor older_values;
    // keeps_older_value(): a copy of it, as it was.
    at::Tensor unrounded;
    // What came after the bucket had been submitted; dense.
    at::Tensor late;
    // A gradient that stays sparse: this rank's, coalesced, at the end of the round.
    at::Tensor sparse;
    bool sparse_is_older = false;  // it is only what .grad held before this round
    at::Tensor older_sparse;       // what .grad held, where new gradients have come
    int64_t version = 0;           // of .grad when the last gradient came
  };

  static uint8_t round_bit(int64_t round) {
    return static_cast<uint8_t>(1 << (std::min<int64_t>(round, 8) - 1));
  }
  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void refuse_second_thread() const;
  at::Tensor& grad() const { return parameter_.mutable_grad(); }
  bool holds(const at::Tensor& tensor) const { return part_.holds(tensor); }
  int64_t view_version() const {
    return view_.unsafeGetTensorImpl()->version_counter().current_version();
  }
  void check_shape(const at::Tensor& gradient) const;
  // slot_sparse.cc
  bool stays_sparse(const at::Tensor& gradient) const;
  bool is_older_sparse(const at::Tensor& gradient) const;
  bool restore_older_sparse();
  void count_sparse_as_new(double share);
  Arrival sparse_arrived(at::Tensor& gradient);

  Extras& extras() {
    if (!extras_) extras_ = spare_ ? std::move(spare_) : std::make_unique<Extras>();
    return *extras_;
  }
  bool has_older() const { return extras_ && extras_->has_older; }
  bool keeps_older_aside() const {
    return (has_older() && settings_.adds_older_value()) ||
           (extras_ && extras_->older_sparse.defined());
  }
  // .grad stands for what was submitted, or for a late part.
  bool is_represented() const { return state_ == State::Reducing || has_late(); }
  bool has_late() const { return extras_ && extras_->late.defined(); }
  void put_back_aside();
  double weigh(std::optional<double> weight, bool present);
  bool was_kept(const at::Tensor& tensor) const;  // and may have been written to since
  bool is_kept(const at::Tensor& tensor) const;
  void keep(const at::Tensor& tensor);
  void leave_to_holders();
  void pack(at::Tensor& gradient);
  bool narrow(const at::Tensor& gradient);
  void pack_unlike(const at::Tensor& gradient);
  void use_older_value();
  void note_version();
  void look_for_zeroing();
  void restore_older_value();
  void keep_older_value();
  void add_older_value();
  void show_result();
  void undo_older_value();
  void drop();
  void take_late(at::Tensor& gradient, bool exclusive);
  void combine_late(const Result& result, bool defined);
  void end_round();

  // What every gradient needs comes first, so that a pass over the slots of a large model reads few
  // lines of cache.
  std::atomic_flag busy_;
  State state_ = State::Idle;
  uint8_t expected_ = 0xff;  // a bit for each round of a step; the last stands for all later ones
  bool fired_ = false;       // a gradient came in this round
  bool neutral_ = false;     // the memory holds the neutral element
  bool narrowed_ = false;    // only the narrow memory holds it; .grad is no view until submission
  bool extends_older_ = false;  // between the hooks: what comes is added to the older value
  bool has_weight_ = false;     // Reducing: the weight of this rank is not 0
  const bool is_own_;           // else another rank gets the result, and this one has no .grad
  int64_t version_ = 0;         // of the view, to see whether somebody wrote
  std::unique_ptr<Extras> extras_;
  at::Tensor aside_;  // before_accumulate() has taken it out of .grad
  at::Tensor parameter_;
  at::Tensor view_;
  const GradientSettings& settings_;
  BucketPart part_;

  std::string name_;
  const GradientBucket* bucket_ = nullptr;
  size_t part_number_ = 0;  // in the bucket
  // A gradient that was narrowed stays in .grad until its bucket is submitted, since autograd may
  // add to it; one with a graph (create_graph) stays in .grad until the end of the round. A strong
  // reference would be a cycle: parameter, gradient, graph, parameter. Idle: what a join() has left
  // over above an older value.
  WeakTensor kept_;
  int64_t kept_version_ = 0;
  // The sparse result of an earlier round, if it is still in .grad.
  WeakTensor older_sparse_;
  std::unique_ptr<Extras> spare_;  // empty, of an earlier round
};

}  // namespace horon::torch_detail
