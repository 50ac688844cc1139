// Where finished submissions wait for a thread of the program to destroy what they hold.
//
// A submission holds the program's tensors and callbacks. The loop must not destroy them: the last
// reference to a tensor runs code of LibTorch, which may take locks that the program's threads
// hold. So it hands them over here; a wait that ends, release_finished() and shutdown() destroy
// them on the program's threads, while they do not hold the loop.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "horon/core/runtime/submission.h"

namespace horon::core {

class Reaper {
 public:
  Reaper() = default;
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  // Where there is no memory to hold one more, it is never destroyed. Whoever steps the loop.
  void add(Submission&& submission) noexcept;
  // Destroys all that is here; nothing in a forked child. Any thread of the program; cheap if there
  // is nothing.
  void release();

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Submission> submissions_;
  // Empty, with memory for the next ones: calls that come again and again allocate none. Not of a
  // thread: shutdown() may come at exit, when what is thread_local has been destroyed.
  std::vector<Submission> spare_;
};

}  // namespace horon::core
