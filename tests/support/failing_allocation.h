// An operator new that fails when a test says so. For programs that link failing_allocation.cc.
#pragma once

namespace horon::test {

// On the calling thread, the allocation after `after` others throws std::bad_alloc, once.
void fail_one_allocation(int after);
// Whether that has happened on any thread since the last call of fail_one_allocation().
bool one_allocation_has_failed();

}  // namespace horon::test
