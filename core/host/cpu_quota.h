// How much CPU time the control groups of this process let it have. A container with such a limit
// (limits.cpu of Kubernetes, CPUQuota= of systemd) still sees all cores of its host. Processes that
// run on more of them use their time up early in each period, and stand still until the next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace horon::core {

struct CpuQuota {
  double cores = 0;       // that would be busy all the time; above 0
  std::string group;      // that sets it: "/kubepods/pod1"
  uint64_t group_id = 0;  // the same in all processes of the host that share this quota
};

// The least one; nullopt: nothing limits it. As control_groups() says.
std::optional<CpuQuota> cpu_quota(const std::string& proc = "/proc",
                                  const std::string& groups = "/sys/fs/cgroup");

}  // namespace horon::core
