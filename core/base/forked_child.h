// Whether this process was made by fork() from one that had begun to watch. It has the memory of a
// job, but neither its threads nor its peers.
#pragma once

namespace horon::core {

// Idempotent. Any thread.
void watch_for_forks();
bool in_forked_child() noexcept;
// Throws Error(NotInitialized) there.
void refuse_forked_child();

}  // namespace horon::core
