// A process in a user namespace of its own, as in a container: others of the same user may not look
// into it then, nor it into them.
#pragma once

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace horon {

inline bool write_file(const char* path, const std::string& text) {
  const int file = open(path, O_WRONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool all = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  return all;
}

// User and group keep their numbers. `more`: flags of unshare(2). False where the system does not
// allow it, or this process has several threads.
inline bool enter_own_user_namespace(int more = 0) {
  const std::string user = std::to_string(geteuid());
  const std::string group = std::to_string(getegid());
  return unshare(CLONE_NEWUSER | more) == 0 &&
         write_file("/proc/self/uid_map", user + " " + user + " 1") &&
         write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/gid_map", group + " " + group + " 1");
}

// Whether a child of this process can.
inline bool allows_user_namespaces() {
  const pid_t child = fork();
  if (child == 0) _exit(enter_own_user_namespace() ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  return status == 0;
}

}  // namespace horon
