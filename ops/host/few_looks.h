// Ranks that arrive at almost the same time need not sleep until the doorbell rings.
#pragma once

#include <utility>

#include "horon/core/base/cpu_relax.h"

namespace horon::ops {

// For one wait of one collective.
class FewLooks {
 public:
  // Whether the others are here, for which `all_here()` looks. The first time it looks a few times
  // more before it says no.
  template <class AllHere>
  bool see(const AllHere& all_here) {
    constexpr int kLooks = 16;
    if (all_here()) return true;
    if (std::exchange(used_up_, true)) return false;
    for (int look = 0; look < kLooks; ++look) {
      core::cpu_relax();
      if (all_here()) return true;
    }
    return false;
  }

 private:
  bool used_up_ = false;
};

}  // namespace horon::ops
