// Counts what a thread allocates with new, in this program and in the libraries that it loads.
#pragma once

#include <cstdint>

namespace horon::testing_support {

// Of the calling thread since it began. A program that links allocation_counter.cc counts.
int64_t allocations_of_this_thread();

}  // namespace horon::testing_support
