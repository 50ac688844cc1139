// Ranks that arrive at almost the same time need not sleep until the doorbell rings.
#pragma once

#include <utility>

#include "horon/core/base/cpu_relax.h"

namespace horon::ops {

// For one wait of one collective.
class FewLooks {
 public:
  // Whether those that this rank waits for are here, for which `are_here()` looks. The first time
  // it looks a few times more before it says no.
  template <class AreHere>
  bool see(const AreHere& are_here) {
    constexpr int kLooks = 16;
    if (are_here()) return true;
    if (std::exchange(used_up_, true)) return false;
    for (int look = 0; look < kLooks; ++look) {
      core::cpu_relax();
      if (are_here()) return true;
    }
    return false;
  }

 private:
  bool used_up_ = false;
};

}  // namespace horon::ops
