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
  // From when the calls before have begun to when this one has. Not a lock: to begin may take as
  // long as an earlier collective does, and who waits for that answers signals and has a deadline.
  class Turn {
   public:
    // Waits for it as for an earlier collective. Throws Error(Timeout), what a signal handler of
    // Python has raised, and Error(InvalidArgument) if this thread has the turn: then such a
    // handler has made the call, in the middle of one.
    Turn(CallLine& line, const Operation& operation);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    CallLine& line_;
    uint64_t number_ = 0;
  };

 private:
  bool is_first(uint64_t number) const { return waiting_.front() == number; }
  void leave(uint64_t number);

  std::mutex mutex_;
  std::condition_variable moved_;
  std::deque<uint64_t> waiting_;  // the first one has its turn
  uint64_t next_ = 0;
  std::thread::id thread_of_turn_;
};

}  // namespace horon::python::process_group
