// In a file of its own: where the compiler sees these operators, it pairs them with the library's.
#include "horon/tests/support/allocation_counter.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocations = 0;
}

// A sanitizer defines this form too, and its memory would not fit the delete below.
// std::stable_sort allocates its buffer by this form.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* operator new(std::size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }

namespace horon::testing_support {

int64_t allocations_of_this_thread() { return allocations; }

}  // namespace horon::testing_support
