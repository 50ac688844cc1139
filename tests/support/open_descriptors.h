// How many files, pipes, sockets and pieces of memory this process has open.
#pragma once

#include <filesystem>

namespace horon::test {

inline int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace horon::test
