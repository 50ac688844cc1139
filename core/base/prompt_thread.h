// For a thread that sleeps most of the time and does little when it is woken.
#pragma once

namespace horon::core {

// Asks the kernel to run the calling thread soon after each wake-up, although every core is busy
// with other threads of this user: short time slices (which give it no more of a core) and sleeps
// that are not rounded up. Without it a woken thread may wait for milliseconds until the thread
// that computes has used up its slice. Kernels that can't do that ignore it (Linux before 6.12).
void make_thread_prompt() noexcept;

}  // namespace horon::core
