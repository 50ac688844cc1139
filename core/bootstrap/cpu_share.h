// How many cores this rank may use, and with how many ranks of its host it shares them.
#pragma once

#include "horon/core/bootstrap/bootstrap.h"

namespace horon::core {

struct CpuShare {
  int cores = 0;    // that this process may run on; 0: not known, the machine has too many to name
  int sharers = 1;  // ranks of this host that may run on one of them, this one included

  // Each rank has a core for the program and one for its background thread.
  bool has_spare_core() const { return cores >= 2 * sharers; }
  // Ranks run by turns.
  bool has_too_few_cores() const { return cores > 0 && cores < sharers; }
};

// A launcher may have bound the ranks to cores, each to its own. Collective.
CpuShare find_cpu_share(const Bootstrap& bootstrap);

}  // namespace horon::core
