// How much memory this process may still take: the least of what the host has left and of what its
// control groups let it have. Containers and batch systems set such limits, and the kernel kills
// processes that pass one.
#pragma once

#include <cstddef>
#include <string>

namespace horon::core {

struct AvailableMemory {
  size_t bytes;
  // What sets this limit: "on this host", or "of the limit of its control group /job_7 (cgroup)".
  std::string where;
};

// A file that can't be read sets no limit. As control_groups() says. Any thread.
AvailableMemory available_memory(const std::string& proc = "/proc",
                                 const std::string& groups = "/sys/fs/cgroup");

}  // namespace horon::core
