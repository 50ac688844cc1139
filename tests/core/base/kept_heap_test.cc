#include "horon/core/base/kept_heap.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

constexpr size_t kPiece = 1 << 20;
constexpr size_t kPieces = 128;

// Like a step of training: everything is freed before the next one.
void allocate_and_free() {
  std::vector<void*> pieces;
  for (size_t i = 0; i < kPieces; ++i) {
    pieces.push_back(std::malloc(kPiece));
    std::memset(pieces.back(), 1, kPiece);
  }
  for (void* const piece : pieces) std::free(piece);
}

// The bytes that are faulted in by one such step, after some equal steps.
size_t bytes_faulted() {
  for (int i = 0; i < 3; ++i) allocate_and_free();
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  allocate_and_free();
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  return static_cast<size_t>(after.ru_minflt - before.ru_minflt) *
         static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t all = 0;
  size_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(KeptHeap, FreedMemoryIsUsedAgainWithoutPageFaults) {
  ASSERT_GT(bytes_faulted(), kPieces * kPiece / 2) << "this C library keeps its heap anyway";
  {
    const KeptHeap first;
    const KeptHeap second;
    EXPECT_LT(bytes_faulted(), kPieces * kPiece / 64);
    EXPECT_GT(resident_bytes(), kPieces * kPiece);
  }
  EXPECT_LT(resident_bytes(), kPieces * kPiece / 2);
  EXPECT_GT(bytes_faulted(), kPieces * kPiece / 2);
}

TEST(KeptHeap, TheLastOneReturnsTheMemory) {
  auto first = std::make_unique<KeptHeap>();
  auto second = std::make_unique<KeptHeap>();
  allocate_and_free();
  first.reset();
  EXPECT_GT(resident_bytes(), kPieces * kPiece);
  second.reset();
  EXPECT_LT(resident_bytes(), kPieces * kPiece / 2);
}

}  // namespace
}  // namespace horon::core
