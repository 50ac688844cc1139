#include <malloc.h>

#include "horon/core/base/kept_heap.h"

namespace horon::core {
namespace {

// The limits to which glibc raises its own. Larger allocations get a mapping of their own. If more
// than kFreeTop is free at the top of the heap, it is returned to the system.
constexpr int kLargestInHeap = 32 << 20;
constexpr int kFreeTop = 2 * kLargestInHeap;

}  // namespace

void KeptHeap::keep() noexcept {
  mallopt(M_MMAP_THRESHOLD, kLargestInHeap);
  mallopt(M_TRIM_THRESHOLD, -1);  // never
}

void KeptHeap::release() noexcept {
  mallopt(M_TRIM_THRESHOLD, kFreeTop);
  malloc_trim(0);
}

}  // namespace horon::core
