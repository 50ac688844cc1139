// Counts what a thread allocates with new, in this program and in the libraries that it loads.
#pragma once

#include <cstdint>

namespace horon::testing_support {

// The allocations of the calling thread since it began. The program must link
// allocation_counter.cc.
int64_t allocations_of_this_thread();

}  // namespace horon::testing_support
