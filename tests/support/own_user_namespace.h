// Puts a process in a user namespace of its own, as in a container. Then processes of the same user
// outside of it may not look into it, nor it into them.
#pragma once

#include <fcntl.h>
#include <functional>
#include <sched.h>
#include <string>
#include <sys/mount.h>
#include <unistd.h>
#include <vector>

#include "horon/tests/support/process_ranks.h"

namespace horon {

inline bool write_file(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool all = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return all;
}

// User and group keep their numbers. `more`: additional flags of unshare(2). Returns false where
// the system does not allow it, or if this process has several threads.
inline bool enter_own_user_namespace(int more = 0) {
  const std::string user = std::to_string(geteuid());
  const std::string group = std::to_string(getegid());
  return unshare(CLONE_NEWUSER | more) == 0 &&
         write_file("/proc/self/uid_map", user + " " + user + " 1") &&
         write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/gid_map", group + " " + group + " 1");
}

// Whether a child of this process can enter a user namespace of its own.
inline bool allows_user_namespaces() {
  return core::run_processes(1, [](int) { return enter_own_user_namespace(); }).front() == 0;
}

// Runs `body` by run_processes(); each process has a /dev/shm of its own, with `mebibytes` MiB.
// Returns how each process ended; empty where the system does not allow it.
inline std::vector<int> run_with_small_folder(int processes, int mebibytes,
                                              const std::function<bool(int)>& body) {
  const std::string size = "size=" + std::to_string(mebibytes) + "m";
  const auto enter = [&size](int) {
    return enter_own_user_namespace(CLONE_NEWNS) &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, size.c_str()) == 0;
  };
  if (core::run_processes(1, enter).front() != 0) return {};
  return core::run_processes(processes, [&](int rank) { return enter(rank) && body(rank); });
}

}  // namespace horon
