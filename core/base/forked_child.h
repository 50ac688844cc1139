// Whether this process was made by fork() from one that had begun to watch. It has the memory of a
// job, but neither its threads nor its peers.
#pragma once

#include <string_view>

namespace horon::core {

// Idempotent. Any thread.
void watch_for_forks();
bool in_forked_child() noexcept;

// The text of the error that such a process gets.
inline constexpr std::string_view kForkedChild =
    "this process was made by fork() after horon::init(); the session belongs to its parent. Fork "
    "before init(), or start the child with exec";

}  // namespace horon::core
