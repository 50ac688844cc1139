// Finds out when backward() ends, so that gradients can be complete when it returns.
//
// LibTorch's engine calls a function at the end of the backward pass in which it was queued. A
// backward pass may run inside another one (recomputation does so), and only the end of the
// outermost one is the end for the program. While an inner pass ends, its thread still executes a
// node of the outer pass; the engine tells which (get_current_node()). The outer pass may call no
// hook of ours, and then nothing is queued in it. So the function is queued there when the engine
// destroys what was queued in the inner pass: by then the thread is back in the outer pass, and
// still in that node. Later would be too late: the outer pass may throw next.
//
// A pass that ends by an exception calls no function. That the engine destroys what was queued is
// how this class notices.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace horon::torch_detail {

// Called on the thread that runs backward(), or on the engine's own thread for the GPU that holds
// the graph. One backward pass is called a task, as in the engine.
class BackwardListener {
 public:
  virtual void task_ended(int64_t task) noexcept = 0;
  // Instead of task_ended() after an exception, which is on its way to the program.
  virtual void task_given_up(int64_t task) noexcept = 0;
  // The outermost backward() of this thread is about to return. True: the listener has submitted
  // its collectives; call backward_ended() once all listeners of this backward() have been asked.
  virtual bool backward_ending() = 0;
  // Waits for the collectives. What it throws leaves backward().
  virtual void backward_ended() = 0;
  // Where several listeners end in one backward(), before backward_ended(). Waits at most this long
  // until the listener knows whether it needs further collectives (it must agree). Empty: it does
  // not know yet.
  virtual std::optional<bool> must_agree(std::chrono::nanoseconds limit) = 0;
  // Makes these collectives and waits for them. Any thread.
  virtual void agree() noexcept = 0;
  // This thread is in a task of which the listener may not have heard. It has not heard yet that
  // the task within it has ended.
  virtual void task_found(int64_t task) = 0;
  // The same on all ranks and unlike that of other listeners: backward_ended() is called in this
  // order, so that ranks wait for their collectives in the same one.
  virtual const std::string& order() const = 0;

 protected:
  ~BackwardListener() = default;
};

struct BackwardLink;

class BackwardEnds {
 public:
  explicit BackwardEnds(BackwardListener* listener);
  // Backward passes that still run end without calling the listener.
  ~BackwardEnds();
  BackwardEnds(const BackwardEnds&) = delete;
  BackwardEnds& operator=(const BackwardEnds&) = delete;

  // The task that this thread is executing; each backward pass has a number of its own.
  static int64_t current_task();
  // From a hook, once for each task: the listener will hear of the end of the current task.
  void await_current_task();

 private:
  std::shared_ptr<BackwardLink> link_;
};

// From a tensor's pre-hook: will autograd add to .grad after it? (Not in autograd::grad(), which
// calls the pre-hooks of the tensors that it computes gradients of.)
bool accumulation_will_follow();

}  // namespace horon::torch_detail
