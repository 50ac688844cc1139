// A forked child that a test runs step by step: the test can stop it between any two of its
// instructions, or where it enters a system call. So a test can try a race in each of its orders,
// and not only in those that happen to occur.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "horon/tests/support/asleep.h"
#include "horon/tests/support/long_enough.h"
#include "horon/tests/support/shared_with_children.h"

namespace horon {

class SteppedProcess {
 public:
  // The child stops before `body`; what `body` returns is its exit code.
  explicit SteppedProcess(const std::function<int()>& body) : pid_(fork()) {
    if (pid_ == 0) {
      if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTraced);
      (void)raise(SIGSTOP);
      _exit(body());
    }
    wait_for_stop();
    // Without this option a stop at a system call can't be told from other stops.
    if (stopped()) (void)ptrace(PTRACE_SETOPTIONS, pid_, nullptr, PTRACE_O_TRACESYSGOOD);
  }
  ~SteppedProcess() {
    if (exit_code_) return;
    (void)kill(pid_, SIGKILL);
    (void)waitpid(pid_, nullptr, 0);
  }
  SteppedProcess(const SteppedProcess&) = delete;
  SteppedProcess& operator=(const SteppedProcess&) = delete;

  // False once the child has ended, and where processes may not be traced.
  bool stopped() const { return !exit_code_.has_value(); }

  void step() {
    (void)ptrace(PTRACE_SINGLESTEP, pid_, nullptr, nullptr);
    wait_for_stop();
  }

  // Lets the child run up to its next entry into this system call. False if it ends before that.
  bool go_to_call(uint64_t number) {
    while (stopped()) {
      (void)ptrace(PTRACE_SYSCALL, pid_, nullptr, nullptr);
      wait_for_stop();
      __ptrace_syscall_info info = {};
      if (stopped() && ptrace(PTRACE_GET_SYSCALL_INFO, pid_, sizeof info, &info) > 0 &&
          info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == number) {
        return true;
      }
    }
    return false;
  }

  // Detaches from the child, and waits until it sleeps or has ended.
  void go_to_sleep() {
    (void)ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    while (!over(std::chrono::microseconds(50)) && !asleep(pid_)) {
    }
  }

  // Detaches from the child and waits for its end. Returns its exit code, or nothing if it does not
  // end within kLongEnough.
  std::optional<int> finish() {
    if (stopped()) (void)ptrace(PTRACE_DETACH, pid_, nullptr, nullptr);
    const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
    while (!over(std::chrono::microseconds(50)) && std::chrono::steady_clock::now() < deadline) {
    }
    return exit_code_;
  }

 private:
  static constexpr int kNotTraced = 99;

  static int code_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  bool over(std::chrono::microseconds pause) {
    std::this_thread::sleep_for(pause);
    int status = 0;
    if (stopped() && waitpid(pid_, &status, WNOHANG) == pid_) exit_code_ = code_of(status);
    return !stopped();
  }

  void wait_for_stop() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    if (!WIFSTOPPED(status)) exit_code_ = code_of(status);
  }

  const pid_t pid_;
  std::optional<int> exit_code_;
};

// Whether processes may be traced and can be stepped through an atomic operation. ARM without its
// atomic instructions makes such an operation of a load and a store. The store fails if the process
// has stopped between the two, and the operation begins again, for ever.
inline bool can_be_stepped() {
  struct Exchange {
    std::atomic<bool> begun{false};
    std::atomic<bool> over{false};
  };
  constexpr int kStepsOfOne = 1000;
  const SharedWithChildren<Exchange> shared;
  SteppedProcess child([&] {
    shared->begun = true;
    return shared->over.exchange(true) ? 1 : 0;
  });
  while (child.stopped() && !shared->begun) child.step();
  for (int i = 0; i < kStepsOfOne && child.stopped() && !shared->over; ++i) child.step();
  return shared->over;
}

}  // namespace horon
