// After an exception has ended backward(), or the closure of a step, on this rank: the others,
// which wait for its gradients, are told, and nothing of the round counts. So the ranks can go on
// with the next step together.
//
// This rank does not wait for them then: the exception is on its way to the program, which may
// never come back. What has been submitted is waited for when the reducer is used again.
#include <exception>

#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"

namespace horon {

using namespace torch_detail;

// False: its end was not awaited.
bool GradientReducer::Impl::forget_task(int64_t task) {
  return std::erase(running_tasks_, task) > 0;
}

void GradientReducer::Impl::task_ended(int64_t task) noexcept {
  const std::lock_guard lock(mutex_);
  (void)forget_task(task);
}

void GradientReducer::Impl::task_given_up(int64_t task) noexcept {
  std::unique_lock lock(mutex_);
  if (forget_task(task) && *no_sync_depth_ == 0) give_up(lock, kBackward);
}

void GradientReducer::Impl::begin_evaluation() {
  if (!settings_.member) return;
  finish_given_up_round();
  begin_anew_after_join();
}

bool GradientReducer::Impl::leave_evaluation(bool has_reduced) {
  if (ops::session_number() != session_) return false;
  if (alone_ || !settings_.member) return leave_step();
  if (has_reduced && !round_) {
    if (round_failed_ || broken_) return false;  // on all ranks
    // Else the others are in the evaluation's next backward(), judging by the step before.
    if (number_.round == 1 || number_.round > rounds_in_step_) return leave_step();
  }
  std::unique_lock lock(mutex_);
  if (!round_) give_up(lock, "the closure of step()");
  if (!lock.owns_lock()) lock.lock();
  if (round_) round_->has_thrown = true;
  return false;
}

// Does nothing if a round is open.
void GradientReducer::Impl::give_up(std::unique_lock<std::mutex>& lock, const char* what) noexcept {
  if (!settings_.member || alone_ || broken_ || round_) return;
  gave_up_ = true;
  if (!running_tasks_.empty()) return;  // that of another thread ends the round
  try {
    open_round();
    round_->ended = what;
  } catch (...) {
    return;
  }
  lock.unlock();
  try {
    begin_round_or_leave_it(/*early=*/false);
  } catch (...) {  // there is no session any more, or no memory: the others see that themselves
    return;
  }
  leave_round_unattended();
}

// What begin_round() throws goes to the program, which may never come back. So the rest is refused
// first: the other ranks, and hooks of other threads, would wait for this thread.
void GradientReducer::Impl::begin_round_or_leave_it(bool early) {
  try {
    begin_round(early);
  } catch (...) {
    try {
      refuse_rest(round_->failures);
    } catch (...) {  // there is no memory: the other ranks wait until this one ends
    }
    leave_round_unattended();
    throw;
  }
}

void GradientReducer::Impl::leave_round_unattended() noexcept {
  {
    const std::lock_guard lock(mutex_);
    round_->unattended = true;
  }
  round_over_.notify_all();
}

// Makes what is not in flight fail on all ranks, which then end the round. Does not touch this
// rank's gradients: a backward pass of a GPU may end on a thread of the engine.
void GradientReducer::Impl::refuse_rest(Failures& failures) {
  const std::string what = round_->given_up
                               ? core::concat(round_->ended, " on rank ", rank(), " ended")
                               : core::concat("the reduction on rank ", rank(), " stopped");
  const Error error(
      ErrorCode::OperationFailed,
      core::concat("\"", name_, "\": ", what, " with an exception; see the error there. ",
                   "No rank uses the gradients of this pass"));
  round_->agreed = true;
  for (GradientBucket& bucket : buckets_) {
    if (bucket.handle == nullptr && !bucket.refusal && !bucket.is_sparse()) bucket.refuse(error);
  }
  agreement_->refuse(error);
  failures.run([&] { throw error; });
}

// True: this thread ends it.
bool GradientReducer::Impl::take_unattended_round() {
  std::unique_lock lock(mutex_);
  const auto me = std::this_thread::get_id();
  round_over_.wait(lock, [&] {  // while another thread refuses the rest of it
    return !round_ || !round_->given_up || round_->unattended || round_->thread == me;
  });
  if (!round_ || !round_->unattended) return false;
  round_->unattended = false;
  round_->thread = me;
  return true;
}

void GradientReducer::Impl::finish_given_up_round() {
  if (!take_unattended_round()) return;
  try {
    end_round();
  } catch (const std::exception&) {  // the program has had one already
  }
}

}  // namespace horon
