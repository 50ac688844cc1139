// A system that has no more threads to give.
#pragma once

namespace horon::testing_support {

// While it lives, each thread that the calling thread wants to start is refused, as when the limit
// of processes is reached. A program that links thread_refusal.cc refuses.
class ThreadRefusal {
 public:
  ThreadRefusal();
  ~ThreadRefusal();
  ThreadRefusal(const ThreadRefusal&) = delete;
  ThreadRefusal& operator=(const ThreadRefusal&) = delete;
  // Threads that were refused.
  int count() const;
};

}  // namespace horon::testing_support
