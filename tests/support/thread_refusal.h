// Simulates a system that has no more threads to give.
#pragma once

namespace horon::testing_support {

// While an object lives, each attempt of the calling thread to start a thread is refused, as when
// the limit of processes is reached. The program must link thread_refusal.cc.
class ThreadRefusal {
 public:
  ThreadRefusal();
  ~ThreadRefusal();
  ThreadRefusal(const ThreadRefusal&) = delete;
  ThreadRefusal& operator=(const ThreadRefusal&) = delete;
  // The number of threads that were refused.
  int count() const;
};

}  // namespace horon::testing_support
