// How long a test waits for what comes at once, unless it hangs.
#pragma once

#include <chrono>

namespace horon {

// Longer than any wait that works, on a busy machine too; shorter than the limit of the whole test,
// so that what hangs is named.
inline constexpr std::chrono::seconds kLongEnough{60};

}  // namespace horon
