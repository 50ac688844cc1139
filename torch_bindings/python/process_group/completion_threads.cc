#include "horon/torch_bindings/python/process_group/completion_threads.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/forked_child.h"

namespace horon::python::process_group {
namespace {

// Threads that are kept for the next operation.
constexpr int kIdleMax = 2;

}  // namespace

class CompletionThreads::State : public std::enable_shared_from_this<State> {
 public:
  void add(std::shared_ptr<Operation> operation, Future future) {
    const std::lock_guard lock(mutex_);
    items_.push_back({std::move(operation), std::move(future)});
    if (!led_) wake_one();
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    work_.notify_all();
  }

  void wait_until_idle(Operation::Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    idle_.wait_until(lock, deadline, [this] { return items_.empty() && busy_ == 0; });
  }

 private:
  struct Item {
    std::shared_ptr<Operation> operation;
    Future future;
  };

  // Under the mutex.
  void wake_one() {
    if (idle_threads_ > 0) return work_.notify_one();
    const core::BlockedSignals blocked;
    std::thread([self = shared_from_this()] { self->serve(); }).detach();
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (items_.empty() || led_) {
        if (closed_ || idle_threads_ >= kIdleMax) return;
        ++idle_threads_;
        work_.wait(lock, [this] { return closed_ || (!led_ && !items_.empty()); });
        --idle_threads_;
        continue;
      }
      Item item = std::move(items_.front());
      items_.pop_front();
      led_ = true;
      ++busy_;
      lock.unlock();
      std::exception_ptr late;
      try {
        item.operation->wait(Operation::Asks::No);
      } catch (...) {
        late = std::current_exception();
      }
      lock.lock();
      led_ = false;
      if (!items_.empty()) wake_one();
      lock.unlock();
      if (late != nullptr) {
        item.future->setErrorIfNeeded(late);
      } else {
        complete(*item.operation, *item.future);
      }
      item = {};
      lock.lock();
      if (--busy_ == 0 && items_.empty()) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable work_, idle_;
  std::deque<Item> items_;
  bool led_ = false;  // a thread waits for an operation
  bool closed_ = false;
  int idle_threads_ = 0;
  int busy_ = 0;  // threads that wait for an operation or complete its future
};

namespace {

struct States {
  std::mutex mutex;
  std::vector<std::weak_ptr<CompletionThreads::State>> all;
};

// Never destroyed: detached threads may outlive main().
States& states() {
  static auto& of_process = *new States;
  return of_process;
}

}  // namespace

CompletionThreads::CompletionThreads() : state_(std::make_shared<State>()) {
  const std::lock_guard lock(states().mutex);
  std::erase_if(states().all, [](const auto& state) { return state.expired(); });
  states().all.push_back(state_);
}

CompletionThreads::~CompletionThreads() { state_->close(); }

void CompletionThreads::add(std::shared_ptr<Operation> operation, Future future) {
  state_->add(std::move(operation), std::move(future));
}

void complete(Operation& operation, c10::ivalue::Future& future) {
  if (const std::exception_ptr fault = operation.outcome()) return future.setErrorIfNeeded(fault);
  future.markCompleted(c10::IValue(operation.outputs()));
}

void let_completions_end() {
  if (core::in_forked_child()) return;  // has none of the threads
  std::vector<std::shared_ptr<CompletionThreads::State>> all;
  {
    const std::lock_guard lock(states().mutex);
    for (const auto& state : states().all) {
      if (auto alive = state.lock()) all.push_back(std::move(alive));
    }
  }
  const auto deadline = Operation::Clock::now() + std::chrono::seconds(5);
  for (const auto& state : all) state->wait_until_idle(deadline);
}

}  // namespace horon::python::process_group
