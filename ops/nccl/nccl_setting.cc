#include "horon/ops/nccl/nccl_setting.h"

#include <fstream>
#include <optional>
#include <pwd.h>
#include <unistd.h>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

std::optional<std::string> find_in(const std::string& file, const std::string& name) {
  std::ifstream lines(file);
  const std::string begin = name + "=";
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.starts_with(begin)) return line.substr(begin.size());
  }
  return std::nullopt;
}

std::vector<std::string> files_of_nccl() {
  std::vector<std::string> files;
  const std::string named = core::environment_value("NCCL_CONF_FILE");
  if (!named.empty()) {
    files.push_back(named);
  } else {
    // NCCL asks the password file up to 2.28, and later versions HOME: mostly the same.
    const passwd* const user = ::getpwuid(::getuid());
    const std::string homes[] = {user != nullptr ? user->pw_dir : "",
                                 core::environment_value("HOME")};
    for (const std::string& home : homes) {
      if (!home.empty()) files.push_back(core::concat(home, "/.nccl.conf"));
    }
  }
  files.emplace_back("/etc/nccl.conf");
  return files;
}

}  // namespace

NcclSetting find_nccl_setting(const std::string& name) {
  if (core::environment_has(name)) return {core::environment_value(name), ""};
  for (const std::string& file : files_of_nccl()) {
    if (const auto value = find_in(file, name)) return {*value, file};
  }
  return {};
}

}  // namespace horon::ops
