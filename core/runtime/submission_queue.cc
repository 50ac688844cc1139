#include "horon/core/runtime/submission_queue.h"

#include <utility>

namespace horon::core {

void SubmissionQueue::push(Call call) {
  const std::lock_guard lock(mutex_);
  if (closed_ != nullptr) throw Error(*closed_);
  calls_.push_back(std::move(call));
  if (calls_.size() == 1) wake_();
}

void SubmissionQueue::drain(std::vector<Call>& calls) {
  const std::lock_guard lock(mutex_);
  calls.swap(calls_);
}

void SubmissionQueue::close(std::shared_ptr<const Error> why) noexcept {
  const std::lock_guard lock(mutex_);
  if (closed_ == nullptr) closed_ = std::move(why);
}

}  // namespace horon::core
