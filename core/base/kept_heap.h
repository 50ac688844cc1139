// Memory that the program frees stays with the C library's heap.
//
// A training step allocates in backward what it frees before the next one. The hooks of a reducer
// free each gradient as soon as it is in its bucket, so at the end of backward nothing is left on
// top of the heap, and glibc returns all of it to the system. The next step then takes a page fault
// for every 4 KiB: more time than the reduction itself for a model of some 40 MB.
#pragma once

namespace horon::core {

// While one lives, the heap of this process does not shrink; when the last one ends, what is free
// is returned. Does nothing where the C library is not glibc, or where the environment says how its
// heap shrinks (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, glibc.malloc in GLIBC_TUNABLES).
// Afterwards glibc no longer adapts these limits by itself: they stay at the largest values that
// it would choose. Any thread.
class KeptHeap {
 public:
  KeptHeap();
  ~KeptHeap();
  KeptHeap(const KeptHeap&) = delete;
  KeptHeap& operator=(const KeptHeap&) = delete;

 private:
  // Defined in kept_heap_glibc.cc or kept_heap_generic.cc; the build picks one.
  static void keep() noexcept;
  static void release() noexcept;
};

}  // namespace horon::core
