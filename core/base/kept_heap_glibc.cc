#include <malloc.h>

#include "horon/core/base/kept_heap.h"

namespace horon::core {
namespace {

// To which glibc raises them by itself: larger pieces of memory are mapped for themselves, and the
// free top of the heap is returned above twice that.
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
