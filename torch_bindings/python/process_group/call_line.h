// The calls of one process group begin one after the other, in the order in which threads make
// them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

class CallLine {
 public:
  // Lasts from when the calls before have begun until this one has. Not a lock: a call may take as
  // long to begin as an earlier collective takes, so its wait answers signals and has a deadline.
  class Turn {
   public:
    // Waits for it as for an earlier collective. Throws Error(Timeout), what a signal handler of
    // Python has raised, and Error(InvalidArgument) if a call of this thread has the turn or waits
    // for it: then a signal handler has made this call in the middle of that one.
    Turn(CallLine& line, const Operation& operation);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    CallLine& line_;
    uint64_t number_ = 0;
  };

 private:
  struct Call {
    uint64_t number;
    std::thread::id thread;
  };
  bool is_first(uint64_t number) const { return calls_.front().number == number; }
  void leave(uint64_t number);

  std::mutex mutex_;
  std::condition_variable moved_;
  std::deque<Call> calls_;  // the first one has its turn, the others stand in line
  uint64_t next_ = 0;
};

}  // namespace horon::python::process_group
