// The shared memory of a process when the system has little or none to give.
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/host/local_group.h"
#include "horon/core/host/shared_heap.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/open_descriptors.h"

namespace {

std::optional<int> pieces_until_memory_is_gone;
int interruptions = 0;  // that are still to come

}  // namespace

// Replaces the function of the C library: signals interrupt it, or memory is gone after some
// pieces, if a test says so.
extern "C" int fallocate(int descriptor, int mode, off_t begin, off_t length) {
  if (interruptions > 0) {
    --interruptions;
    errno = EINTR;
    return -1;
  }
  if (mode == 0 && pieces_until_memory_is_gone && (*pieces_until_memory_is_gone)-- <= 0) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, descriptor, mode, begin, length));
}

// Likewise: after memory is given back, there is memory again.
extern "C" int madvise(void* at, size_t bytes, int advice) noexcept {
  if (advice == MADV_REMOVE) pieces_until_memory_is_gone.reset();
  return static_cast<int>(syscall(SYS_madvise, at, bytes, advice));
}

namespace horon::core {
namespace {

// The bytes of memory that the one segment of this size in this process holds.
size_t bytes_held(size_t bytes) {
  for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
    struct stat status {};
    if (stat(file.path().c_str(), &status) != 0) continue;
    if (static_cast<size_t>(status.st_size) != bytes) continue;
    return static_cast<size_t>(status.st_blocks) * 512;
  }
  return 0;
}

TEST(ScarceMemory, HoldsNoPagesOfABlockThatItCouldNotRestore) {
  constexpr size_t kBytes = size_t{4} << 20;
  const size_t segment_bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE)) + kBytes;
  const auto heap = std::make_shared<SharedHeap>(0);
  auto block = heap->allocate(kBytes, true);
  const std::byte* const place = block.get();
  block.reset();
  EXPECT_LT(bytes_held(segment_bytes), size_t{1} << 20);
  const int open_files = test::open_descriptors();
  pieces_until_memory_is_gone = 2;
  EXPECT_THROW(heap->allocate(kBytes, true), Error);
  pieces_until_memory_is_gone.reset();
  EXPECT_LT(bytes_held(segment_bytes), size_t{1} << 20);
  EXPECT_FALSE(heap->locate(place, 1)) << "nobody holds it";
  EXPECT_EQ(test::open_descriptors(), open_files);
  block = heap->allocate(kBytes, true);
  EXPECT_EQ(block.get(), place) << "it is not lost";
}

// What fails takes none of the segments that these blocks may have.
TEST(ScarceMemory, ReusedBlocksComeBackWhenThereIsMemoryAgain) {
  const auto heap = std::make_shared<SharedHeap>();
  for (size_t i = 0; i < SharedHeap::kReusedSegmentsMax; ++i) {
    pieces_until_memory_is_gone = 0;
    EXPECT_THROW(heap->allocate_reused(200'000), Error);
  }
  pieces_until_memory_is_gone.reset();
  EXPECT_NE(heap->allocate_reused(200'000), nullptr);
}

TEST(ScarceMemory, IsInterruptedWithoutHarm) {
  const auto heap = std::make_shared<SharedHeap>();
  interruptions = 3;
  EXPECT_NE(heap->allocate(4'000'000, true), nullptr);
  EXPECT_EQ(interruptions, 0);
}

TEST(ScarceMemory, GivesBackWhatIsNotUsedBeforeItRefusesMemory) {
  const auto heap = std::make_shared<SharedHeap>();
  const auto small = heap->allocate(1000, true);
  std::memset(small.get(), 3, 1000);
  heap->allocate(1000, true).reset();  // beside it, so it stays
  const size_t cached = heap->cached_bytes();
  for (const size_t bytes : {4'000'000, 5'000'000}) heap->allocate(bytes, true).reset();
  for (const size_t bytes : {9'000'000, 4'000'000}) {  // a new block, and one that has no pages now
    pieces_until_memory_is_gone = 2;
    heap->allocate(bytes, true).reset();
    EXPECT_EQ(heap->cached_bytes(), cached + SharedHeap::size_class(bytes));
  }
  EXPECT_TRUE(all_are(std::span<const std::byte>(small.get(), 1000), std::byte{3}));
}

}  // namespace
}  // namespace horon::core
