#include "horon/core/host/available_memory.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "horon/core/base/text.h"
#include "horon/core/host/control_groups.h"

namespace horon::core {
namespace {

namespace fs = std::filesystem;

// The names of files in one version of control groups.
struct GroupFiles {
  const char* limit;
  const char* used;
  // In memory.stat: pages of files, which the kernel takes back when it needs memory.
  std::initializer_list<std::string_view> files;
};

const GroupFiles kVersion1{
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
const GroupFiles kVersion2{"memory.max", "memory.current", {"inactive_file", "active_file"}};

// Adds up the numbers of these keys in a file with a key and a number in each line.
size_t sum_in(const fs::path& path, std::initializer_list<std::string_view> keys) {
  std::ifstream file(path);
  std::string key;
  size_t number = 0;
  size_t sum = 0;
  for (std::string rest; file >> key >> number; std::getline(file, rest)) {
    for (const std::string_view wanted : keys) sum += key == wanted ? number : 0;
  }
  return sum;
}

void take_host(const std::string& proc, AvailableMemory& least) {
  const fs::path path = fs::path(proc) / "meminfo";
  constexpr size_t kKilobyte = 1024;
  const size_t kilobytes = sum_in(path, {"MemAvailable:"});
  if (kilobytes > 0) least = {kilobytes * kKilobyte, "on this host"};
}

void take_group(const ControlGroup& group, AvailableMemory& least) {
  const GroupFiles& files = group.version == 2 ? kVersion2 : kVersion1;
  const std::optional<size_t> limit = number_in<size_t>(group.folder / files.limit);
  const std::optional<size_t> used = number_in<size_t>(group.folder / files.used);
  if (!limit || !used) return;
  const size_t reclaimable = sum_in(group.folder / "memory.stat", files.files);
  const size_t kept = *used > reclaimable ? *used - reclaimable : 0;
  const size_t left = *limit > kept ? *limit - kept : 0;
  if (left < least.bytes) {
    least = {left, concat("of the limit of its control group ", group.name, " (cgroup)")};
  }
}

}  // namespace

AvailableMemory available_memory(const std::string& proc, const std::string& groups) {
  AvailableMemory least{std::numeric_limits<size_t>::max(), ""};
  take_host(proc, least);
  for (const ControlGroup& group : control_groups("memory", proc, groups)) {
    take_group(group, least);
  }
  return least;
}

}  // namespace horon::core
