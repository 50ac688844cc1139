#include "horon/core/host/control_groups.h"

#include "horon/core/base/text.h"

namespace horon::core {
namespace {

namespace fs = std::filesystem;

void add_with_parents(const fs::path& mounted, std::string name, int version,
                      std::vector<ControlGroup>& result) {
  for (;;) {
    result.push_back({mounted / fs::path(name).relative_path(), name, version});
    if (name.size() <= 1) return;
    name = fs::path(name).parent_path().string();
  }
}

bool has(std::string_view controllers, std::string_view controller) {
  return concat(",", controllers, ",").find(concat(",", controller, ",")) != std::string::npos;
}

}  // namespace

std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& proc,
                                         const std::string& groups) {
  std::vector<ControlGroup> result;
  // "0::/path" (version 2) or "4:memory,x:/path" (version 1)
  std::ifstream memberships(fs::path(proc) / "self" / "cgroup");
  for (std::string line; std::getline(memberships, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string name = line.substr(second + 1);
    if (controllers.empty()) {
      add_with_parents(groups, name, 2, result);
    } else if (has(controllers, controller)) {
      add_with_parents(fs::path(groups) / controller, name, 1, result);
    }
  }
  return result;
}

}  // namespace horon::core
