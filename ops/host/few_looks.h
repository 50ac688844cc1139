// Ranks that arrive at almost the same time need not sleep until the doorbell rings.
#pragma once

#include <utility>

#include "horon/core/base/cpu_relax.h"

namespace horon::ops {

// For one wait of one collective.
class FewLooks {
 public:
  // Whether the ranks that this one waits for are here, as are_here() tells. The first call looks a
  // few more times before it says no.
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
