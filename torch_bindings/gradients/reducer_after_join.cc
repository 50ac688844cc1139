// A join() that comes in the middle of a step, or of an epoch with unlike numbers of steps: the
// ranks stand in unlike rounds of unlike steps. All begin a step when they come back from it. And a
// session that ends: a reducer does not outlive it.
#include <utility>

#include "horon/core/base/forked_child.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"

namespace horon {

using namespace torch_detail;

// Another session may have other ranks, and another reducer may have this one's name there. Outside
// any session the call itself throws. A forked child lacks the memory of the buckets.
void GradientReducer::Impl::require_session() const {
  core::refuse_forked_child();
  const uint32_t running = ops::session_number();
  if (running == 0 || running == session_) return;
  throw Error(
      ErrorCode::InvalidArgument,
      core::concat("\"", name_,
                   "\": this reducer (or DistributedOptimizer) was made before the last ",
                   "shutdown(); make a new one after init() (in Python: del this one first)"));
}

void GradientReducer::Impl::note_joins() {
  if (settings_.member && !round_) begin_anew_after_join();
}

// No round is open, and no hook of another thread runs: a join() has no backward() beside it. What
// this rank has submitted, the others have reduced before the join() ended, in a step that this
// rank has not made: kept in .grad it would be a value that the others do not hold.
void GradientReducer::Impl::begin_anew_after_join() {
  if (!is_initialized()) return;
  const uint64_t joins = ops::call_counts().times_forgotten(settings_.set);
  if (std::exchange(joins_, joins) == joins) return;
  for (GradientBucket& bucket : buckets_) {
    Failures failures;  // of a step that is over
    if (bucket.handle != nullptr) failures.run([&] { (void)outcome_of(bucket); });
    for (const size_t slot : bucket.slots()) {
      if (slots_[slot].is_submitted()) slots_[slot].leave_submitted();
    }
  }
  for (GradientSlot& slot : slots_) {
    if (alone_) {
      slot.end_round_alone();
    } else {
      slot.gather_anew();
    }
  }
  forget_gathering();
  number_.round = 1;
  weight_.reset();
  task_alone_ = -1;
  steady_task_ = kNoTask;
  round_failed_ = false;
}

}  // namespace horon
