// Files of shared memory that other processes find by a number: /dev/shm/horon-NUMBER.
//
// A name outlives its process. So those of a process that ends by exit() go then, and its maker
// keeps a lock on the file (flock(2)), which the kernel ends with the process: those of one that
// crashed are removed by whoever looks for such (remove_abandoned_files()).
#pragma once

#include <cstdint>
#include <string>

namespace horon::core {

// Why there is no memory for a job in /dev/shm; empty: there is, now.
std::string why_no_named_files();
std::string path_of_named_file(uint64_t number);
// An empty file for this user alone, locked: a descriptor. Any thread. Throws
// Error(OperationFailed), and Error(Limit) if the process has too many open files.
int make_named_file(uint64_t number);
// False: it keeps its number.
bool renumber_named_file(uint64_t from, uint64_t to) noexcept;
void remove_named_file(uint64_t number) noexcept;
// Those of this user whose makers, and all children that they forked, have ended. Returns how many.
int remove_abandoned_files() noexcept;

}  // namespace horon::core
