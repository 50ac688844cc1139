// What a program is asked while its threads wait: may the wait go on? A language that handles
// signals by itself, such as Python, answers Ctrl-C there.
#pragma once

#include <chrono>

namespace horon::core {

// Called by threads of the program that wait for a collective without a time limit: about every
// kWaitCheckInterval, with no lock of the runtime's held. What it throws ends the wait; the
// collective goes on, and may be waited for again.
using WaitCheck = void (*)();
inline constexpr std::chrono::milliseconds kWaitCheckInterval{100};

// Of the process; null (the default): waits ask nobody. Any thread.
void set_wait_check(WaitCheck check) noexcept;
WaitCheck wait_check() noexcept;

}  // namespace horon::core
