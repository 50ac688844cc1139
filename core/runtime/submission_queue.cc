#include "horon/core/runtime/submission_queue.h"

#include <utility>

namespace horon::core {

thread_local const SubmissionQueue* SubmissionQueue::held_ = nullptr;

// The mutex, marked from before it is taken until after it is free.
class SubmissionQueue::Lock {
 public:
  explicit Lock(SubmissionQueue& queue) : queue_(queue), outer_(held_) {
    held_ = &queue;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    queue_.mutex_.lock();
  }
  ~Lock() {
    queue_.mutex_.unlock();
    std::atomic_signal_fence(std::memory_order_seq_cst);
    held_ = outer_;
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  SubmissionQueue& queue_;
  const SubmissionQueue* const outer_;  // where several ranks are threads of one program
};

void SubmissionQueue::push(Call call) {
  push_quietly(std::move(call));
  announce();
}

void SubmissionQueue::push_quietly(Call call) {
  const Lock lock(*this);
  if (closed_ != nullptr) throw Error(*closed_);
  calls_.push_back(std::move(call));
  any_.store(true, std::memory_order_release);
}

void SubmissionQueue::announce() {
  const Lock lock(*this);
  if (closed_ != nullptr || calls_.empty() || announced_) return;
  announced_ = true;
  wake_();
}

void SubmissionQueue::drain(std::vector<Call>& calls) {
  if (!any_.load(std::memory_order_acquire)) return;
  const Lock lock(*this);
  calls.swap(calls_);
  any_.store(false, std::memory_order_relaxed);
  announced_ = false;
}

void SubmissionQueue::close(std::shared_ptr<const Error> why) noexcept {
  const Lock lock(*this);
  if (closed_ == nullptr) closed_ = std::move(why);
}

}  // namespace horon::core
