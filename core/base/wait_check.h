// A function that waiting threads of the program call now and then. It may end the wait by an
// exception: this is how Python, which handles signals itself, answers Ctrl-C.
#pragma once

#include <chrono>

namespace horon::core {

// Called by threads of the program that wait for a collective without a time limit: about every
// kWaitCheckInterval, with no lock of the runtime's held. What it throws ends the wait; the
// collective goes on, and may be waited for again.
using WaitCheck = void (*)();
inline constexpr std::chrono::milliseconds kWaitCheckInterval{100};

// One for the whole process. Null, the default: waits call nothing. Any thread.
void set_wait_check(WaitCheck check) noexcept;
WaitCheck wait_check() noexcept;

}  // namespace horon::core
