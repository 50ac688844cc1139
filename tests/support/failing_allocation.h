// An operator new that fails when a test says so. For programs that link failing_allocation.cc.
#pragma once

namespace horon::test {

// On the calling thread, the `count` allocations after `after` others throw std::bad_alloc.
void fail_allocations(int after, int count);
// Whether one has failed on any thread since the last call of fail_allocations().
bool an_allocation_has_failed();

}  // namespace horon::test
