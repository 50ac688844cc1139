// Whether a thread sleeps, as the kernel says.
#pragma once

#include <fstream>
#include <string>
#include <sys/types.h>

namespace horon {

// `thread` may belong to any process; the id of a process means its first thread.
inline bool asleep(pid_t thread) {
  std::ifstream file("/proc/" + std::to_string(thread) + "/stat");
  std::string status;
  std::getline(file, status);
  const size_t end_of_name = status.rfind(')');
  return end_of_name != std::string::npos && status.substr(end_of_name + 1, 2) == " S";
}

}  // namespace horon
