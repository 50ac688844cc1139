#include "horon/tests/support/failing_allocation.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace horon::test {
namespace {

thread_local int allocations_left = 0;  // before the first one that fails
thread_local int failures_left = 0;
std::atomic<bool> one_has_failed{false};

bool fails() {
  if (failures_left == 0 || allocations_left-- > 0) return false;
  allocations_left = 0;
  --failures_left;
  one_has_failed = true;
  return true;
}

}  // namespace

void fail_allocations(int after, int count) {
  one_has_failed = false;
  allocations_left = after;
  failures_left = count;
}

bool an_allocation_has_failed() { return one_has_failed; }

}  // namespace horon::test

// A sanitizer defines this form too, and its memory would not fit the delete below.
// std::stable_sort allocates its buffer by this form.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  if (horon::test::fails()) return nullptr;
  return std::malloc(bytes > 0 ? bytes : 1);
}

void* operator new(size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
