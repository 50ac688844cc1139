// Does work ahead of the one who needs its results, on background threads, and hands the results
// out in order. Knows no LibTorch.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "horon/core/base/blocked_signals.h"

namespace horon::torch_detail {

// One thread at a time calls next(), wait_seconds() and the destructor.
template <class Item>
class Prefetcher {
 public:
  // Makes one item, on background thread `thread` (0 .. threads-1).
  using Work = std::function<Item(size_t thread)>;
  // The next piece of work; an empty function: there is none any more. Called by one background
  // thread at a time, in the order in which items are handed out.
  using Draw = std::function<Work()>;

  // Starts. Up to `ahead` items have been drawn and not handed out at any time. Both at least 1.
  Prefetcher(Draw draw, size_t threads, size_t ahead) : draw_(std::move(draw)), ahead_(ahead) {
    try {
      const core::BlockedSignals blocked;  // the threads inherit them
      for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { run(i); });
    } catch (...) {
      stop();
      throw;
    }
  }
  // Waits for the work that is being done; what is not begun is not done.
  ~Prefetcher() { stop(); }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // Waits for the next item. Nothing: the end. What `draw` or the work of this item has thrown is
  // thrown here, when the items before it have been handed out; then comes the end.
  std::optional<Item> next() {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return pending_.empty() ? ended_ : pending_.front()->done; });
    wait_seconds_ +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (pending_.empty()) return std::nullopt;
    const std::shared_ptr<Pending> pending = std::move(pending_.front());
    pending_.pop_front();
    if (pending->error) pending_.clear();  // and run() draws nothing more
    lock.unlock();
    room_.notify_all();
    if (pending->error) std::rethrow_exception(pending->error);
    return std::move(pending->item);
  }

  // Seconds that next() has waited.
  double wait_seconds() const { return wait_seconds_; }

 private:
  struct Pending {
    bool done = false;
    std::optional<Item> item;
    std::exception_ptr error;
  };

  void run(size_t thread) {
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock, [this] { return ended_ || pending_.size() < ahead_; });
      if (ended_) return;
      const auto pending = std::make_shared<Pending>();
      Work work;
      try {
        work = draw_();
      } catch (...) {
        pending->error = std::current_exception();
        pending->done = true;
      }
      if (work || pending->error) pending_.push_back(pending);
      if (!work) {
        ended_ = true;
        room_.notify_all();
        ready_.notify_all();
        return;
      }
      lock.unlock();
      do_work(*pending, work, thread);
      lock.lock();
      pending->done = true;
      if (pending->error) ended_ = true;  // what would come behind it is never handed out
      ready_.notify_all();
    }
  }

  static void do_work(Pending& pending, const Work& work, size_t thread) {
    try {
      pending.item.emplace(work(thread));
    } catch (...) {
      pending.error = std::current_exception();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  const Draw draw_;
  const size_t ahead_;
  std::mutex mutex_;
  std::condition_variable room_;   // for the background threads
  std::condition_variable ready_;  // for next()
  std::deque<std::shared_ptr<Pending>> pending_;
  bool ended_ = false;  // nothing more is drawn
  double wait_seconds_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace horon::torch_detail
