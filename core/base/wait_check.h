// A function that waiting threads of the program call now and then. It may end the wait by an
// exception: this is how Python, which handles signals itself, answers Ctrl-C.
#pragma once

#include <algorithm>
#include <chrono>

#include "horon/core/base/forked_child.h"

namespace horon::core {

// Called by threads of the program that wait for a collective, with a time limit of the program's
// or without one: about every kWaitCheckInterval, with no lock of the runtime's held. What it
// throws ends the wait; the collective goes on, and may be waited for again.
using WaitCheck = void (*)();
inline constexpr std::chrono::milliseconds kWaitCheckInterval{100};

// One for the whole process. Null, the default: waits call nothing. Any thread.
void set_wait_check(WaitCheck check) noexcept;
WaitCheck wait_check() noexcept;

// Calls `wait(limit)` until it returns true, and between calls the check, which may throw. False:
// the timeout is over. In a forked child, where nothing goes on, false at once.
template <class Wait>
bool wait_and_check(std::chrono::nanoseconds timeout, const Wait& wait) {
  using std::chrono::nanoseconds;
  constexpr nanoseconds longest = std::chrono::hours(24 * 365);
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto end = now() + std::clamp(timeout, nanoseconds(0), longest);
  for (;;) {
    const nanoseconds left = std::max<nanoseconds>(end - now(), nanoseconds(0));
    const WaitCheck check = wait_check();
    if (wait(check != nullptr ? std::min<nanoseconds>(left, kWaitCheckInterval) : left)) {
      return true;
    }
    if (in_forked_child() || now() >= end) return false;
    if (check != nullptr) check();
  }
}

}  // namespace horon::core
