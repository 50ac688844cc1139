#include "horon/core/host/cpu_quota.h"

#include <fstream>
#include <sys/stat.h>

#include "horon/core/host/control_groups.h"

namespace horon::core {
namespace {

// CPU time per time: "max 100000" (no limit) or "800000 100000" in one file, or two files, of which
// the first holds -1 for no limit.
std::optional<double> cores_of(const ControlGroup& group) {
  std::optional<double> quota;
  std::optional<double> period;
  if (group.version == 2) {
    std::ifstream file(group.folder / "cpu.max");
    double first = 0;
    double second = 0;
    if (file >> first >> second) {
      quota = first;
      period = second;
    }
  } else {
    quota = number_in<double>(group.folder / "cpu.cfs_quota_us");
    period = number_in<double>(group.folder / "cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

// Names differ between containers, but the file system of the groups is one.
uint64_t id_of(const ControlGroup& group) {
  struct stat status {};
  return stat(group.folder.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

std::optional<CpuQuota> cpu_quota(const std::string& proc, const std::string& groups) {
  std::optional<CpuQuota> least;
  for (const ControlGroup& group : control_groups("cpu", proc, groups)) {
    const std::optional<double> cores = cores_of(group);
    if (!cores || (least && least->cores <= *cores)) continue;
    least = {*cores, group.name, id_of(group)};
  }
  return least;
}

}  // namespace horon::core
