// How many cores this rank may use, and with how many ranks of its host it shares them.
#pragma once

#include <optional>
#include <sched.h>
#include <string>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/host/cpu_quota.h"

namespace horon::core {

struct CpuShare {
  // That this process may keep busy; 0: not known, as the machine has too many to name.
  int cores = 0;
  int sharers = 1;  // ranks of this host that may use one of them, this one included
  // The quota of a control group leaves less than the cores that this process may run on.
  bool by_quota = false;
  int visible = 0;   // cores that this process may run on
  int physical = 0;  // of those, where several may be hardware threads of one

  // Each rank has a core for the program and one for its background thread.
  bool has_spare_core() const { return cores >= 2 * sharers; }
  // Ranks run by turns.
  bool has_too_few_cores() const { return cores > 0 && cores < sharers; }
};

// Counts hardware threads of one core once; `folder`: of the files of the kernel about cores.
int physical_cores(const cpu_set_t& cores, const std::string& folder = "/sys/devices/system/cpu");

// A launcher may have bound the ranks to cores, each to its own; a container may have a quota of
// CPU time, which is rounded down to whole cores, at least one. Collective.
CpuShare find_cpu_share(const Bootstrap& bootstrap,
                        const std::optional<CpuQuota>& quota = cpu_quota());

// For a rank that mpirun has bound, as it does of its own accord, to less than half of the cores
// that each of its host's `local_size` ranks could have. Empty: it is not so. `of_mpirun`: the
// cores that mpirun may use; 0: not known.
std::string binding_remark(const CpuShare& share, int of_mpirun, int local_size);

}  // namespace horon::core
