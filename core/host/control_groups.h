// The control groups of this process (cgroups(7)), by which containers and batch systems limit what
// it may use. Versions 1 and 2.
#pragma once

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace horon::core {

struct ControlGroup {
  std::filesystem::path folder;  // of its files
  std::string name;              // "/job_7"
  int version = 2;
};

// The groups of this controller ("memory", "cpu") that this process is in: its own, and all above
// it, whose limits hold for it too. In a container a name may be the host's, while only the
// container's own group is mounted: then only the last one, "/", has files. A file that can't be
// read names no groups. The folders are those of proc(5) and cgroups(7). Any thread.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::string& proc,
                                         const std::string& groups);

// The number with which a file begins; nullopt: there is none, but "max", say.
template <class Number>
std::optional<Number> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  Number number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

}  // namespace horon::core
