// How long a test waits for something that comes at once unless the program hangs.
#pragma once

#include <chrono>

namespace horon {

// Longer than any wait that succeeds, on a busy machine too; shorter than the time limit of the
// whole test, so that the test can name what hangs.
inline constexpr std::chrono::seconds kLongEnough{60};

}  // namespace horon
