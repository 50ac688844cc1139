#include "horon/torch_bindings/python/process_group/completion_threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/forked_child.h"
#include "horon/core/runtime/completion_queue.h"
#include "horon/torch_bindings/tensors/stream_order.h"

namespace horon::python::process_group {
namespace {

using core::CompletionQueue;
using Clock = Operation::Clock;

// Threads that are kept for the next operation.
constexpr int kIdleMax = 2;

}  // namespace

class CompletionThreads::State : public std::enable_shared_from_this<State> {
 public:
  explicit State(Ends ends) : ends_(ends) {}

  void add(std::shared_ptr<Operation> operation, Future future,
           std::shared_ptr<LateResults> late_results) {
    const std::lock_guard lock(mutex_);
    const uint64_t number = next_number_++;
    const Clock::time_point deadline = operation->deadline_of_wait();
    Item added{std::move(operation), std::move(future), deadline, std::move(late_results)};
    const auto item = items_.emplace(number, std::move(added)).first;
    try {
      if (ends_ == Ends::InAnyOrder) listen_to(*item);
      if (!led_ && !leader_comes_) call_leader();
    } catch (...) {
      items_.erase(item);
      throw;
    }
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    work_.notify_all();
  }

  void wait_until_idle(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    idle_.wait_until(lock, deadline, [this] { return items_.empty() && busy_ == 0; });
  }

 private:
  struct Item {
    std::shared_ptr<Operation> operation;
    Future future;
    Clock::time_point deadline;  // of the thread that waits for the future
    std::shared_ptr<LateResults> late_results;
  };
  using Items = std::map<uint64_t, Item>;  // by number, in order of add()

  // Under the mutex.
  void listen_to(const Items::value_type& item) {
    item.second.operation->notify(ended_, item.first);
    if (!led_ || item.second.deadline >= led_until_) return;
    auto earlier = std::make_unique<CompletionQueue::Entry>();
    earlier->queue = ended_;
    earlier->token = item.first;
    CompletionQueue::push(std::move(earlier));
  }

  // Under the mutex. Takes the item out: no other thread finds it while this one waits.
  Item take(Items::iterator item) { return std::move(items_.extract(item).mapped()); }

  static bool is_late_before(const Items::value_type& one, const Items::value_type& other) {
    return one.second.deadline < other.second.deadline;
  }

  // Waits for an item that has ended, or whose time is over.
  Item wait_for_any(std::unique_lock<std::mutex>& lock) {
    for (;;) {
      const auto next_late = std::min_element(items_.begin(), items_.end(), is_late_before);
      led_until_ = next_late->second.deadline;
      const auto left = led_until_ - Clock::now();
      if (left.count() <= 0 || core::in_forked_child()) return take(next_late);
      lock.unlock();
      const std::optional<uint64_t> token = ended_->next(left);
      lock.lock();
      const auto ended = token ? items_.find(*token) : items_.end();
      if (ended != items_.end() && ended->second.operation->finished()) return take(ended);
    }
  }

  // Under the mutex.
  void call_leader() {
    if (idle_threads_ > 0) {
      work_.notify_one();
    } else {
      const core::BlockedSignals blocked;
      std::thread([self = shared_from_this()] { self->serve(); }).detach();
    }
    leader_comes_ = true;
  }

  // If no thread can be started, this thread leads again when it has completed its future.
  void call_leader_if_possible() {
    try {
      call_leader();
    } catch (const std::system_error&) {
    }
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
      led_ = true;
      leader_comes_ = false;
      ++busy_;
      Item item = ends_ == Ends::InOrder ? take(items_.begin()) : wait_for_any(lock);
      lock.unlock();
      std::exception_ptr late;
      try {
        item.operation->wait_until(item.deadline, Operation::Asks::No);
      } catch (...) {
        late = std::current_exception();
      }
      lock.lock();
      led_ = false;
      if (!items_.empty() && !leader_comes_) call_leader_if_possible();
      lock.unlock();
      if (late != nullptr) {
        item.future->setErrorIfNeeded(late);
      } else {
        complete(*item.operation, *item.future, *item.late_results);
      }
      item = {};
      lock.lock();
      if (--busy_ == 0 && items_.empty()) idle_.notify_all();
    }
  }

  const Ends ends_;
  // Ends::InAnyOrder: numbers of items that have ended, or whose time is over before `led_until_`.
  const std::shared_ptr<CompletionQueue> ended_ = std::make_shared<CompletionQueue>();
  std::mutex mutex_;
  std::condition_variable work_, idle_;
  Items items_;
  uint64_t next_number_ = 0;
  bool led_ = false;             // a thread waits for an operation
  bool leader_comes_ = false;    // a thread was called to lead, and has not begun
  Clock::time_point led_until_;  // Ends::InAnyOrder: when it looks for late ones
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

CompletionThreads::CompletionThreads(Ends ends) : state_(std::make_shared<State>(ends)) {
  const std::lock_guard lock(states().mutex);
  std::erase_if(states().all, [](const auto& state) { return state.expired(); });
  states().all.push_back(state_);
}

CompletionThreads::~CompletionThreads() { state_->close(); }

void CompletionThreads::add(std::shared_ptr<Operation> operation, Future future,
                            std::shared_ptr<LateResults> late_results) {
  state_->add(std::move(operation), std::move(future), std::move(late_results));
}

void complete(Operation& operation, c10::ivalue::Future& future, LateResults& late_results) {
  const torch_detail::StreamAside aside(operation.device());
  const std::exception_ptr fault = operation.outcome();
  late_results.forget_delivered();
  if (fault != nullptr) return future.setErrorIfNeeded(fault);
  future.markCompleted(c10::IValue(operation.outputs()));
  operation.note_stream_aside();
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
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  for (const auto& state : all) state->wait_until_idle(deadline);
}

}  // namespace horon::python::process_group
