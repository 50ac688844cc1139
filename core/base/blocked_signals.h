// Keeps signals away from the threads of the library.
#pragma once

#include <csignal>

namespace horon::core {

// While it lives, the calling thread takes no signals, and neither do the threads that it starts,
// for as long as they run: the program's handlers and profiling timers stay with the program's
// threads. Signals that a thread causes itself (SIGSEGV and its like) are left alone.
class BlockedSignals {
 public:
  BlockedSignals() noexcept;
  ~BlockedSignals();
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace horon::core
