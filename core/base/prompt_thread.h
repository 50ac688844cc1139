// Scheduling of a thread that sleeps most of the time and runs briefly when it is woken.
#pragma once

namespace horon::core {

// Asks the kernel to run the calling thread soon after each wake-up, even if every core is busy:
// shorter time slices, and sleeps that are not rounded up. The thread's share of a core stays the
// same. Otherwise a woken thread may wait for milliseconds until the thread that computes has used
// up its slice. Linux before 6.12 ignores the length of the slice.
void make_thread_prompt() noexcept;

// For a thread of the program that waits for the network: while enabled, its sleeps are not rounded
// up. Gives the thread its own setting back at the end.
class PromptTimers {
 public:
  PromptTimers() = default;
  ~PromptTimers();
  PromptTimers(const PromptTimers&) = delete;
  PromptTimers& operator=(const PromptTimers&) = delete;
  void enable() noexcept;

 private:
  int before_ns_ = -1;  // -1: not enabled
};

}  // namespace horon::core
