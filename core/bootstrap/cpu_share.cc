#include "horon/core/bootstrap/cpu_share.h"

#include <algorithm>
#include <sched.h>
#include <vector>

namespace horon::core {

CpuShare find_cpu_share(const Bootstrap& bootstrap) {
  cpu_set_t own;
  CPU_ZERO(&own);
  // Fails only on machines with more cores than the set can name.
  if (sched_getaffinity(0, sizeof(own), &own) != 0) CPU_ZERO(&own);
  const std::vector<cpu_set_t> all = allgather_values(bootstrap, Bootstrap::Among::Host, own);
  const auto shares = [&](const cpu_set_t& cores) {
    cpu_set_t common;
    CPU_AND(&common, &own, &cores);
    return CPU_COUNT(&common) > 0;
  };
  CpuShare share;
  share.cores = CPU_COUNT(&own);
  share.sharers = std::max(1, static_cast<int>(std::ranges::count_if(all, shares)));
  return share;
}

}  // namespace horon::core
