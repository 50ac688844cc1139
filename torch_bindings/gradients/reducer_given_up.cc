// A backward() that an exception has ended on this rank: the others, which wait for its gradients,
// are told, and nothing of the round counts. So the ranks can go on with the next step together.
//
// This rank does not wait for them then: the exception is on its way to the program, which may
// never come back. What has been submitted is waited for when the reducer is used again.
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"

namespace horon {

using namespace torch_detail;

// False: its end was not awaited.
bool GradientReducer::Impl::forget_task(int64_t task) {
  return std::erase_if(running_tasks_,
                       [task](const RunningTask& running) { return running.id == task; }) > 0;
}

void GradientReducer::Impl::task_ended(int64_t task) noexcept {
  const std::lock_guard lock(mutex_);
  (void)forget_task(task);
}

void GradientReducer::Impl::task_given_up(int64_t task) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!forget_task(task) || alone_ || broken_ || round_ || *no_sync_depth_ > 0) return;
    gave_up_ = true;
    if (!running_tasks_.empty()) return;  // that of another thread ends the round
    try {
      open_round();
    } catch (...) {
      return;
    }
  }
  try {
    begin_round(/*early=*/false);
  } catch (...) {  // there is no session any more, or no memory: the others see that themselves
  }
  {
    const std::lock_guard lock(mutex_);
    round_->unattended = true;
  }
  round_over_.notify_all();
}

// What is not under way fails on all ranks.
void GradientReducer::Impl::refuse_rest(Failures& failures) {
  const Error error(ErrorCode::OperationFailed,
                    core::concat("\"", name_, "\": backward() on rank ", rank(),
                                 " has ended by an exception; see the error there. No rank has ",
                                 "gradients of this pass"));
  round_->agreed = true;
  for (GradientBucket& bucket : buckets_) {
    if (bucket.handle != nullptr || bucket.refusal || bucket.is_sparse()) continue;
    failures.run([&] {
      for (const size_t slot : bucket.slots()) {
        (void)slots_[slot].prepare_submission(weight_, /*is_shown=*/false);
      }
    });
    bucket.refuse(error);
  }
  agreement_->refuse(error);
  failures.run([&] { throw error; });
}

void GradientReducer::Impl::finish_given_up_round() {
  {
    const std::lock_guard lock(mutex_);
    if (!round_ || !round_->unattended) return;
    round_->unattended = false;
    round_->thread = std::this_thread::get_id();
  }
  try {
    end_round();
  } catch (const Error&) {  // backward() has thrown
  }
}

}  // namespace horon
