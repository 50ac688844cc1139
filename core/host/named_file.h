// Files of shared memory that other processes find by a number: /dev/shm/horon-NUMBER.
//
// A name outlives its process. So a process that ends by exit() removes its names then. The maker
// of a file also keeps a lock on it (flock(2)), which the kernel ends with the process: the files
// of a crashed process are removed by the next call of remove_abandoned_files().
#pragma once

#include <cstdint>
#include <string>

namespace horon::core {

// Why /dev/shm has no memory for a job; empty if it has now.
std::string why_no_named_files();
std::string path_of_named_file(uint64_t number);
// Makes an empty, locked file for this user alone; returns its descriptor. Any thread. Throws
// Error(OperationFailed), and Error(Limit) if the process has too many open files.
int make_named_file(uint64_t number);
// False: the file keeps its number.
bool renumber_named_file(uint64_t from, uint64_t to) noexcept;
void remove_named_file(uint64_t number) noexcept;
// Removes files of this user whose makers, and all their forked children, have ended; returns how
// many.
int remove_abandoned_files() noexcept;

}  // namespace horon::core
