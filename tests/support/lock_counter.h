// Counts the mutexes that a thread locks.
#pragma once

#include <cstdint>

namespace horon::testing_support {

// Of the calling thread since it began, also of those that were free. A program that links
// lock_counter.cc counts.
int64_t locks_of_this_thread();

}  // namespace horon::testing_support
