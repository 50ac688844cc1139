#include "horon/core/runtime/reaper.h"

#include <utility>

namespace horon::core {

void Reaper::add(Submission&& submission) {
  const bool program_owns_nothing = submission.keep_alive == nullptr &&
                                    submission.allocate_output == nullptr &&
                                    submission.ready == nullptr;
  if (program_owns_nothing) return;
  const std::lock_guard lock(mutex_);
  submissions_.push_back(std::move(submission));
  any_.store(true, std::memory_order_release);
}

void Reaper::release() {
  if (!any_.load(std::memory_order_acquire)) return;
  std::vector<Submission> dying;  // destroyed behind the lock: destructors may come back here
  const std::lock_guard lock(mutex_);
  dying.swap(submissions_);
  any_.store(false, std::memory_order_relaxed);
}

}  // namespace horon::core
