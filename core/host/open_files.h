// How many files this process may have open: each large piece of shared memory takes one.
#pragma once

#include <string>

namespace horon::core {

// Raises the process's own limit (ulimit -n, 1024 by default) as far as an ordinary process may,
// but not beyond 65,536: some programs close every descriptor that could be open.
void allow_more_open_files() noexcept;

// The text of an error: "this process may have 1024 open files, and has them: ...", with the cure.
std::string too_many_open_files();

}  // namespace horon::core
