// Counts the mutexes that a thread locks.
#pragma once

#include <cstdint>

namespace horon::testing_support {

// How often the calling thread has locked a mutex since it began, whether the mutex was free or
// not. The program must link lock_counter.cc.
int64_t locks_of_this_thread();

}  // namespace horon::testing_support
