#include "horon/core/host/cpu_share.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sched.h>
#include <set>
#include <string>
#include <vector>

#include "horon/core/base/text.h"

namespace horon::core {
namespace {

// What a rank tells the others of its host.
struct Limits {
  cpu_set_t cores;
  uint64_t quota_group;  // 0: no quota, or of an unknown group
};

}  // namespace

int physical_cores(const cpu_set_t& cores, const std::string& folder) {
  std::set<std::string> siblings;
  int without_file = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores)) continue;
    std::ifstream file(concat(folder, "/cpu", core, "/topology/thread_siblings_list"));
    std::string list;  // "0,32", alike for both
    if (file >> list) {
      siblings.insert(list);
    } else {
      ++without_file;
    }
  }
  return static_cast<int>(siblings.size()) + without_file;
}

CpuShare find_cpu_share(const Bootstrap& bootstrap, const std::optional<CpuQuota>& quota) {
  Limits own{};
  CPU_ZERO(&own.cores);
  // Fails only on machines with more cores than the set can name.
  if (sched_getaffinity(0, sizeof(own.cores), &own.cores) != 0) CPU_ZERO(&own.cores);
  own.quota_group = quota ? quota->group_id : 0;
  const std::vector<Limits> all = allgather_values(bootstrap, Bootstrap::Among::Host, own);
  const auto shares_cores = [&](const Limits& other) {
    cpu_set_t common;
    CPU_AND(&common, &own.cores, &other.cores);
    return CPU_COUNT(&common) > 0;
  };
  CpuShare share;
  share.visible = share.cores = CPU_COUNT(&own.cores);
  share.physical = physical_cores(own.cores);
  share.sharers = std::max(1, static_cast<int>(std::ranges::count_if(all, shares_cores)));
  if (!quota) return share;
  const auto shares_quota = [&](const Limits& other) {
    return own.quota_group != 0 && other.quota_group == own.quota_group;
  };
  const int sharers = std::max(1, static_cast<int>(std::ranges::count_if(all, shares_quota)));
  const bool is_less = share.cores == 0 || quota->cores * share.sharers < share.cores * sharers;
  if (!is_less) return share;
  share.cores = std::max(1, static_cast<int>(quota->cores));
  share.sharers = sharers;
  share.by_quota = true;
  return share;
}

std::string binding_remark(const CpuShare& share, int of_mpirun, int local_size) {
  const int own = std::max(1, share.visible / share.sharers);
  const int possible = of_mpirun / local_size;
  if (share.visible == 0 || share.by_quota || possible < 2 * own) return "";
  return concat("mpirun has bound this rank to ", share.visible, " of ", of_mpirun, " cores",
                share.sharers > 1 ? concat(", shared by ", share.sharers, " ranks") : "",
                ": mpirun --bind-to none, or horonrun, gives it ", possible);
}

}  // namespace horon::core
