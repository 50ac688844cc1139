#include "horon/core/runtime/submission_queue.h"

#include <utility>

namespace horon::core {

void SubmissionQueue::push(Call call) {
  push_quietly(std::move(call));
  announce();
}

void SubmissionQueue::push_quietly(Call call) {
  const std::lock_guard lock(mutex_);
  if (closed_ != nullptr) throw Error(*closed_);
  calls_.push_back(std::move(call));
  any_.store(true, std::memory_order_release);
}

void SubmissionQueue::announce() {
  const std::lock_guard lock(mutex_);
  if (closed_ != nullptr || calls_.empty() || announced_) return;
  announced_ = true;
  wake_();
}

void SubmissionQueue::drain(std::vector<Call>& calls) {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  calls.swap(calls_);
  any_.store(false, std::memory_order_relaxed);
  announced_ = false;
}

void SubmissionQueue::close(std::shared_ptr<const Error> why) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_ == nullptr) closed_ = std::move(why);
}

}  // namespace horon::core
