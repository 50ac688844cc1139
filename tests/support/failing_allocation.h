// An operator new that fails when a test says so. For programs that link failing_allocation.cc.
#pragma once

namespace horon::test {

// On the calling thread, the next `after` allocations succeed, and the `count` ones after them
// throw std::bad_alloc.
void fail_allocations(int after, int count);
// Whether an allocation has failed so, on any thread, since the last call of fail_allocations().
bool an_allocation_has_failed();

}  // namespace horon::test
