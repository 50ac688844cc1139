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

  // Called by whoever steps the loop. Without memory to hold it, the submission is never destroyed.
  void add(Submission&& submission) noexcept;
  // Destroys all that is here; nothing in a forked child. Any thread of the program; cheap if there
  // is nothing.
  void release();

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<Submission> submissions_;
  // Empty, with memory for the next ones, so that repeated calls allocate none. Not thread_local:
  // shutdown() may come at exit, when thread_local objects have been destroyed.
  std::vector<Submission> spare_;
};

}  // namespace horon::core
