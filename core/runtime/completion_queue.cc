#include "horon/core/runtime/completion_queue.h"

#include <algorithm>
#include <new>
#include <utility>

#include "horon/core/base/forked_child.h"

namespace horon::core {

CompletionQueue::~CompletionQueue() {
  // A forked child has a copy made at the fork, in which threads of its parent seem to wait for
  // ever; the destructor of the condition variable would wait for them.
  if (in_forked_child()) new (&changed_) std::condition_variable;
  // One after the other: destroying a long list must not recurse once for each entry.
  while (first_ != nullptr) first_ = std::move(first_->next);
}

std::optional<uint64_t> CompletionQueue::next(std::optional<std::chrono::nanoseconds> timeout) {
  if (in_forked_child()) return std::nullopt;
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return first_ != nullptr || closed_; };
  if (timeout) {
    constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365);
    changed_.wait_for(lock, std::min(*timeout, longest), ready);
  } else {
    changed_.wait(lock, ready);
  }
  if (first_ == nullptr) return std::nullopt;
  const uint64_t token = first_->token;
  first_ = std::move(first_->next);
  if (first_ == nullptr) last_ = nullptr;
  return token;
}

void CompletionQueue::close() {
  if (in_forked_child()) return;  // the lock may be held for ever, and next() does not block
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

void CompletionQueue::push(std::unique_ptr<Entry> entry) noexcept {
  const std::shared_ptr<CompletionQueue> queue = std::move(entry->queue);
  if (in_forked_child()) return;  // as above
  {
    const std::lock_guard lock(queue->mutex_);
    Entry* const added = entry.get();
    (queue->last_ == nullptr ? queue->first_ : queue->last_->next) = std::move(entry);
    queue->last_ = added;
  }
  queue->changed_.notify_one();
}

}  // namespace horon::core
