#include "horon/torch_bindings/gradients/backward_ends.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace horon::torch_detail {

namespace autograd = ::torch::autograd;

struct BackwardLink {
  std::atomic<BackwardListener*> listener{nullptr};  // null: it is gone
  std::mutex gives_up;  // held while the listener hears of a task that has been given up
};

namespace {

using Link = std::shared_ptr<BackwardLink>;

// Listeners whose backward_ending() has said yes, on this thread.
struct Ending {
  std::string order;
  Link link;
  int64_t task = 0;
};
thread_local std::vector<Ending> endings;

// Empty where the system has no thread to give.
std::optional<std::jthread> agree_on_a_thread(BackwardListener* listener) {
  try {
    return std::jthread([listener] { listener->agree(); });
  } catch (const std::system_error&) {
    return std::nullopt;
  }
}

// What several listeners must agree on. Other ranks may end them in other backward passes, one
// after the other and in any order, so no listener waits behind the collectives of another: each
// that must agree does so on a thread of its own. The result: the thread of each, if it has one.
// Once the system refuses one, the rest agree in backward_ended() instead: that is right where all
// ranks end them in one order, also if others do so in several backward passes.
std::vector<std::optional<std::jthread>> agree_side_by_side(const std::vector<Ending>& list) {
  constexpr std::chrono::milliseconds turn{1};
  std::vector<std::optional<std::jthread>> agreeing(list.size());
  std::vector<size_t> asked(list.size());
  std::iota(asked.begin(), asked.end(), size_t{0});
  bool any_agrees = false;
  bool has_threads = true;
  while (!asked.empty() && has_threads) {
    // With one listener left and no other that agrees, nothing waits behind it: it may block in
    // backward_ended().
    if (asked.size() == 1 && !any_agrees) break;
    std::erase_if(asked, [&](size_t index) {
      BackwardListener* const listener = list[index].link->listener;
      if (listener == nullptr) return true;
      if (!has_threads) return false;
      const std::optional<bool> must_agree = listener->must_agree(turn);
      if (must_agree == true) {
        agreeing[index] = agree_on_a_thread(listener);
        any_agrees = true;
        has_threads = agreeing[index].has_value();
      }
      return must_agree.has_value();
    });
  }
  return agreeing;
}

// All of them end, whatever becomes of one; the first exception is passed on.
void end_all() {
  std::vector<Ending> list = std::exchange(endings, {});
  std::sort(list.begin(), list.end(),
            [](const Ending& a, const Ending& b) { return a.order < b.order; });
  std::vector<std::optional<std::jthread>> agreeing(list.size());
  if (list.size() > 1) agreeing = agree_side_by_side(list);
  std::exception_ptr first;
  for (size_t i = 0; i < list.size(); ++i) {
    agreeing[i].reset();  // joins it
    BackwardListener* const listener = list[i].link->listener;
    if (listener == nullptr) continue;
    try {
      listener->backward_ended();
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

// Runs end_all(), even if a function of the program that is called before it throws: the other
// ranks have the gradients of this pass, so this one must have them too.
class EndAll {
 public:
  EndAll() = default;
  ~EndAll() {
    if (has_run_) return;
    try {
      end_all();
    } catch (...) {  // the program's exception is on its way
      return;
    }
  }
  EndAll(const EndAll&) = delete;
  EndAll& operator=(const EndAll&) = delete;

  void run() {
    has_run_ = true;
    end_all();
  }

 private:
  bool has_run_ = false;
};

void queue(std::function<void()> function) {
  autograd::Engine::get_default_engine().queue_callback(std::move(function));
}

// What the engine keeps as long as a task.
class AwaitedTask {
 public:
  AwaitedTask(Link link, int64_t task) : link_(std::move(link)), task_(task) {}
  ~AwaitedTask() {
    if (!is_queued_ || (ended_ && !is_inner_)) return;
    // This may be a thread of the engine, a little after backward() has thrown.
    const std::lock_guard lock(link_->gives_up);
    BackwardListener* const listener = link_->listener;
    if (listener == nullptr) return;
    if (autograd::get_current_node() == nullptr) {
      is_inner_ ? listener->task_ended(task_) : listener->task_given_up(task_);
      return;
    }
    // The thread is back in the outer pass, whose end decides: it may go on also where this one has
    // ended by an exception.
    try {
      listener->task_found(BackwardEnds::current_task());
    } catch (...) {  // no memory to await the outer pass
    }
    listener->task_ended(task_);
  }
  AwaitedTask(const AwaitedTask&) = delete;
  AwaitedTask& operator=(const AwaitedTask&) = delete;

  // Until then nobody awaits the task: the caller may hold the listener's lock.
  void note_queued() { is_queued_ = true; }

  void end() {
    BackwardListener* const listener = link_->listener;
    if (std::exchange(ended_, true) || listener == nullptr) return;
    is_inner_ = autograd::get_current_node() != nullptr;
    if (is_inner_) return;
    listener->task_ended(task_);
    if (!listener->backward_ending()) return;
    // An entry of an earlier task is left only if another callback threw before its end_all().
    std::erase_if(endings, [&](const Ending& ending) { return ending.task != task_; });
    endings.push_back({listener->order(), link_, task_});
    // Runs after what other listeners have queued in this task.
    queue([ending = std::make_shared<EndAll>()] { ending->run(); });
  }

 private:
  Link link_;
  int64_t task_;
  bool is_queued_ = false;
  bool ended_ = false;
  bool is_inner_ = false;  // has ended within another task, which counts from then on
};

}  // namespace

BackwardEnds::BackwardEnds(BackwardListener* listener) : link_(std::make_shared<BackwardLink>()) {
  link_->listener = listener;
}

BackwardEnds::~BackwardEnds() {
  const std::lock_guard lock(link_->gives_up);
  link_->listener = nullptr;
}

int64_t BackwardEnds::current_task() { return autograd::get_current_graph_task_id(); }

void BackwardEnds::await_current_task() {
  const auto task = std::make_shared<AwaitedTask>(link_, current_task());
  queue([task] { task->end(); });
  task->note_queued();
}

bool accumulation_will_follow() {
  const auto* const planned = autograd::get_current_graph_task_exec_info();
  if (planned == nullptr || planned->empty()) return true;  // the whole graph is executed
  const auto node = planned->find(autograd::get_current_node().get());
  return node == planned->end() || node->second.needed_;
}

}  // namespace horon::torch_detail
