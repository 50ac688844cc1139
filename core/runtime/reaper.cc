#include "horon/core/runtime/reaper.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "horon/core/base/forked_child.h"
#include "horon/core/base/keep_for_ever.h"

namespace horon::core {
namespace {

constexpr size_t kSpareMax = 64;  // submissions

}  // namespace

void Reaper::add(Submission&& submission) noexcept {
  const bool program_owns_nothing = submission.keep_alive.use_count() == 0 &&
                                    submission.allocate_output == nullptr &&
                                    submission.ready == nullptr;
  if (program_owns_nothing) return;
  const std::lock_guard lock(mutex_);
  try {
    submissions_.push_back(std::move(submission));
  } catch (...) {
    keep_value_for_ever(submission);
    return;
  }
  any_.store(true, std::memory_order_release);
}

void Reaper::release() {
  if (!any_.load(std::memory_order_acquire)) return;
  if (in_forked_child()) return;  // it is the parent's, and the lock may be held for ever
  std::vector<Submission> dying;
  {
    const std::lock_guard lock(mutex_);
    dying.swap(submissions_);
    submissions_.swap(spare_);
    any_.store(false, std::memory_order_relaxed);
  }
  dying.clear();  // not under the lock: destructors may come back here
  if (dying.capacity() > kSpareMax) return;
  const std::lock_guard lock(mutex_);
  spare_.swap(dying);
}

}  // namespace horon::core
