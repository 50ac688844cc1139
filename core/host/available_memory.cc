#include "horon/core/host/available_memory.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "horon/core/base/text.h"

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

// Reads a file that begins with a number; "max" gives none.
std::optional<size_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  size_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

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

void take_group(const fs::path& folder, const std::string& name, const GroupFiles& files,
                AvailableMemory& least) {
  const std::optional<size_t> limit = number_in(folder / files.limit);
  const std::optional<size_t> used = number_in(folder / files.used);
  if (!limit || !used) return;
  const size_t reclaimable = sum_in(folder / "memory.stat", files.files);
  const size_t kept = *used > reclaimable ? *used - reclaimable : 0;
  const size_t left = *limit > kept ? *limit - kept : 0;
  if (left < least.bytes) {
    least = {left, concat("of the limit of its control group ", name, " (cgroup)")};
  }
}

// A group's limit holds for all groups below it. In a container the path may be the host's, while
// only the container's own group is mounted: then only the root is there.
void take_groups(const fs::path& mounted, std::string path, const GroupFiles& files,
                 AvailableMemory& least) {
  for (;;) {
    take_group(mounted / fs::path(path).relative_path(), path, files, least);
    if (path.size() <= 1) return;
    path = fs::path(path).parent_path().string();
  }
}

bool has_memory(std::string_view controllers) {
  return concat(",", controllers, ",").find(",memory,") != std::string::npos;
}

}  // namespace

AvailableMemory available_memory(const std::string& proc, const std::string& groups) {
  AvailableMemory least{std::numeric_limits<size_t>::max(), ""};
  take_host(proc, least);
  // "0::/path" (version 2) or "4:memory,x:/path" (version 1)
  std::ifstream memberships(fs::path(proc) / "self" / "cgroup");
  for (std::string line; std::getline(memberships, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      take_groups(groups, path, kVersion2, least);
    } else if (has_memory(controllers)) {
      take_groups(fs::path(groups) / "memory", path, kVersion1, least);
    }
  }
  return least;
}

}  // namespace horon::core
