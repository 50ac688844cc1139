#include "horon/core/host/shared_heap.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/host/local_group.h"
#include "horon/core/host/open_files.h"
#include "horon/tests/support/all_are.h"
#include "horon/tests/support/process_ranks.h"

namespace horon::core {
namespace {

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

bool all_zero(const std::byte* data, size_t bytes) {
  return all_are(std::span(data, bytes), std::byte{0});
}

std::shared_ptr<SharedHeap> make_heap(size_t cached_bytes_max = SharedHeap::kCachedBytesMax) {
  return std::make_shared<SharedHeap>(cached_bytes_max);
}

TEST(SharedHeap, RoundsLittle) {
  for (size_t bytes = 0; bytes < 100'000; bytes += 7) {
    const size_t rounded = SharedHeap::size_class(bytes);
    EXPECT_GE(rounded, bytes);
    EXPECT_EQ(rounded % 4096, 0U);
    EXPECT_EQ(SharedHeap::size_class(rounded), rounded);
    EXPECT_LE(rounded, std::max(bytes + 4096, bytes + bytes / 8)) << bytes;
  }
  EXPECT_EQ(SharedHeap::size_class(size_t{25} << 20), size_t{26} << 20);
}

TEST(SharedHeap, GivesZeroedAlignedMemoryOfAnySize) {
  const auto heap = make_heap();
  std::vector<std::shared_ptr<std::byte>> held;
  for (const size_t bytes : {0, 1, 63, 64, 65, 4095, 4096, 4097, 131'072, 131'073, 3'000'000}) {
    held.push_back(heap->allocate(bytes, true));
    ASSERT_NE(held.back(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(held.back().get()) % 64, 0U);
    EXPECT_TRUE(all_zero(held.back().get(), bytes));
    std::memset(held.back().get(), 0xff, bytes);  // must not reach into any other
  }
}

TEST(SharedHeap, TakesSoManySegmentsForReusedBlocks) {
  const auto heap = make_heap();
  std::vector<std::shared_ptr<std::byte>> held;
  for (size_t i = 0; i < SharedHeap::kReusedSegmentsMax; ++i) {
    held.push_back(heap->allocate_reused(200'000));
    ASSERT_NE(held.back(), nullptr) << i;
  }
  EXPECT_EQ(heap->segment_count(), SharedHeap::kReusedSegmentsMax);
  EXPECT_EQ(heap->allocate_reused(200'000), nullptr);
  EXPECT_EQ(heap->allocate_reused(300'000), nullptr);
  EXPECT_NE(heap->allocate(300'000, false), nullptr) << "it is not of those";
  EXPECT_NE(heap->allocate_reused(300'000), nullptr) << "this block waits";
  held.pop_back();
  held.push_back(heap->allocate_reused(200'000));
  EXPECT_NE(held.back(), nullptr);
  EXPECT_EQ(heap->segment_count(), SharedHeap::kReusedSegmentsMax + 1);
}

TEST(SharedHeap, ReusesWhatComesBackAndZeroesItOnlyIfAsked) {
  const auto heap = make_heap();
  for (const size_t bytes : {size_t{100}, size_t{10'000}, size_t{5'000'000}}) {
    auto memory = heap->allocate(bytes, true);
    std::byte* const place = memory.get();
    const size_t segments = heap->segment_count();
    std::memset(place, 0x5a, bytes);
    memory.reset();
    memory = heap->allocate(bytes - bytes / 100, false);  // about the size is enough
    EXPECT_EQ(memory.get(), place);
    EXPECT_EQ(*place, std::byte{0x5a});
    memory.reset();
    memory = heap->allocate(bytes, true);
    EXPECT_EQ(memory.get(), place);
    EXPECT_TRUE(all_zero(place, bytes));
    EXPECT_EQ(heap->segment_count(), segments);
  }
}

TEST(SharedHeap, PutsSmallBlocksTogether) {
  const auto heap = make_heap();
  std::vector<std::shared_ptr<std::byte>> held;
  std::set<std::byte*> places;
  for (int i = 0; i < 128; ++i) {
    held.push_back(heap->allocate(1000, true));
    places.insert(held.back().get());
  }
  EXPECT_EQ(places.size(), held.size());
  EXPECT_LE(heap->segment_count(), 2U);
  constexpr size_t kSegmentBytes = size_t{256} << 10;
  EXPECT_EQ(heap->cached_bytes(), heap->segment_count() * kSegmentBytes - held.size() * 4096);
}

TEST(SharedHeap, LocatesOnlyWhatIsHeldAndInOnePiece) {
  const auto heap = make_heap();
  const auto first = heap->allocate(4096, true);
  auto second = heap->allocate(4096, true);
  const auto large = heap->allocate(1'000'000, true);
  std::byte elsewhere{};
  EXPECT_FALSE(heap->locate(&elsewhere, 1));
  EXPECT_FALSE(heap->locate(nullptr, 0));
  EXPECT_FALSE(heap->locate(first.get(), 4097));  // the neighbour is another piece
  EXPECT_TRUE(heap->locate(first.get(), 4096));
  EXPECT_TRUE(heap->locate(first.get() + 4095, 1));
  EXPECT_FALSE(heap->locate(first.get() + 4095, 2));
  EXPECT_FALSE(heap->locate(large.get() - 1, 2));
  EXPECT_FALSE(heap->locate(large.get() + 8, 2'000'000));

  const auto address = heap->locate(large.get() + 777, 1000);
  ASSERT_TRUE(address.has_value());
  EXPECT_EQ(address->offset, 777U);
  EXPECT_EQ(heap->find(*address), large.get() + 777);
  const auto one = heap->locate(first.get(), 1);
  const auto two = heap->locate(second.get(), 1);
  EXPECT_EQ(one->segment, two->segment);
  EXPECT_NE(one->offset, two->offset);
  EXPECT_NE(one->generation, address->generation);
  EXPECT_EQ(make_heap()->find(*address), nullptr);

  std::byte* const gone = second.get();
  second.reset();
  EXPECT_FALSE(heap->locate(gone, 1));
  EXPECT_EQ(heap->find({999, 1, 0}), nullptr);
}

TEST(SharedHeap, GivesLargeUnusedBlocksBackToTheSystem) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto heap = make_heap(kBytes);
  auto first = heap->allocate(kBytes, true);
  auto second = heap->allocate(kBytes, true);
  std::byte* const place = second.get();
  std::memset(place, 1, kBytes);
  first.reset();
  EXPECT_EQ(heap->cached_bytes(), kBytes);
  second.reset();
  EXPECT_EQ(heap->cached_bytes(), kBytes);  // this one's pages are gone
  EXPECT_TRUE(all_zero(place, kBytes));
  second = heap->allocate(kBytes, false);
  EXPECT_EQ(second.get(), place);
  std::memset(place, 2, kBytes);
  first = heap->allocate(kBytes, false);
  EXPECT_EQ(heap->cached_bytes(), 0U);
  EXPECT_EQ(heap->segment_count(), 2U);
  second.reset();  // from now on it is a block like any other
  EXPECT_EQ(heap->cached_bytes(), kBytes);
  second = heap->allocate(kBytes, false);
  EXPECT_EQ(heap->cached_bytes(), 0U);
  EXPECT_TRUE(all_are(std::span<const std::byte>(place, kBytes), std::byte{2}));
}

class SharedHeapThatIsReached : public testing::TestWithParam<Reach> {};
INSTANTIATE_TEST_SUITE_P(, SharedHeapThatIsReached,
                         testing::Values(Reach::ByProcess, Reach::ByName), [](const auto& tested) {
                           return tested.param == Reach::ByName ? "ByName" : "ByProcess";
                         });

// Otherwise a peer would go on with its old mapping, and an MPI that has registered it with the old
// pages.
TEST_P(SharedHeapThatIsReached, PeersMapABlockAnewWhosePagesWereGivenBack) {
  constexpr size_t kBytes = size_t{4} << 20;
  const auto heap = std::make_shared<SharedHeap>(0, GetParam());
  auto block = heap->allocate(kBytes, true);
  const auto before = heap->locate(block.get(), kBytes);
  const SharedSegment mapped = SharedSegment::open(
      GetParam(), getpid(), static_cast<int>(before->segment), before->generation);
  block.reset();
  block = heap->allocate(kBytes, true);
  const auto after = heap->locate(block.get(), kBytes);
  EXPECT_EQ(after->segment, before->segment);
  EXPECT_NE(after->generation, before->generation);
  EXPECT_EQ(heap->find(*before), nullptr);
  EXPECT_EQ(heap->find(*after), block.get());
  EXPECT_THROW(SharedSegment::open(GetParam(), getpid(), static_cast<int>(before->segment),
                                   before->generation),
               Error);
  std::memset(block.get(), 7, kBytes);
  const SharedSegment anew = SharedSegment::open(
      GetParam(), getpid(), static_cast<int>(after->segment), after->generation);
  EXPECT_TRUE(all_are(std::span<const std::byte>(anew.data(), kBytes), std::byte{7}));
}

TEST(SharedHeap, RanksOfAHostShareWhatMayStay) {
  constexpr size_t mib = size_t{1} << 20;
  EXPECT_EQ(SharedHeap::cached_bytes_max(1), 1024 * mib);
  EXPECT_EQ(SharedHeap::cached_bytes_max(4), 1024 * mib);
  EXPECT_EQ(SharedHeap::cached_bytes_max(8), 512 * mib);
  EXPECT_EQ(SharedHeap::cached_bytes_max(64), 64 * mib);
  EXPECT_EQ(SharedHeap::cached_bytes_max(256), 64 * mib);
}

TEST(SharedHeap, MemoryOutlivesTheHeapsOwner) {
  auto heap = make_heap();
  const auto memory = heap->allocate(10'000, true);
  const auto before = heap->locate(memory.get(), 10'000);
  ASSERT_TRUE(before);
  heap.reset();
  EXPECT_TRUE(all_zero(memory.get(), 10'000));
  std::memset(memory.get(), 1, 10'000);
  // Another heap then gives out other memory.
  const auto next = make_heap();
  const auto other = next->allocate(10'000, true);
  std::memset(other.get(), 2, 10'000);
  EXPECT_EQ(std::count(memory.get(), memory.get() + 10'000, std::byte{1}), 10'000);
}

TEST(SharedHeap, AForkedChildChangesNothing) {
  const auto heap = make_heap(0);  // what is given back loses its pages at once
  auto small = heap->allocate(5000, true);
  auto large = heap->allocate(1'000'000, true);
  std::memset(small.get(), 1, 5000);
  std::memset(large.get(), 1, 1'000'000);
  const size_t cached = heap->cached_bytes();
  const int writer = end_of_child([&] {
    signal(SIGSEGV, SIG_DFL);
    std::memset(large.get(), 2, 1'000'000);
  });
  EXPECT_TRUE(WIFSIGNALED(writer));
  EXPECT_EQ(WTERMSIG(writer), SIGSEGV);
  EXPECT_EQ(end_of_child([&] {
              small.reset();
              large.reset();
            }),
            0);
  EXPECT_EQ(end_of_child([&] {
              try {
                (void)heap->allocate(100, true);
                _exit(1);
              } catch (const Error& error) {
                _exit(error.code() == ErrorCode::NotInitialized ? 0 : 2);
              }
            }),
            0);
  EXPECT_EQ(std::count(small.get(), small.get() + 5000, std::byte{1}), 5000);
  EXPECT_EQ(std::count(large.get(), large.get() + 1'000'000, std::byte{1}), 1'000'000);
  EXPECT_EQ(heap->cached_bytes(), cached);
}

// In a child, memory at the address of a parent's segment belongs to the child.
TEST(SharedSegment, AForkedChildUnmapsNothing) {
  auto segment = SharedSegment::create(100'000);
  std::byte* const first_page = segment.data() - page_bytes();
  EXPECT_EQ(end_of_child([&] {
              void* const own = mmap(first_page, 2 * page_bytes(), PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
              if (own != first_page) _exit(1);
              segment = SharedSegment();
              *static_cast<volatile char*>(own) = 1;
            }),
            0);
  EXPECT_TRUE(all_zero(segment.data(), segment.bytes()));
}

TEST(SharedHeap, RefusesWhatTheMachineDoesNotHave) {
  const auto heap = make_heap();
  for (const size_t bytes : {size_t{1} << 44, size_t{1} << 60, SIZE_MAX}) {
    try {
      heap->allocate(bytes, true);
      ADD_FAILURE() << "no error for " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Limit);
    }
  }
  EXPECT_EQ(heap->segment_count(), 0U);
  EXPECT_NE(heap->allocate(1, true), nullptr);
}

// Each large block needs an open file.
TEST(SharedHeap, SaysWhatToDoWhenTooManyFilesAreOpen) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 64;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  const auto heap = std::make_shared<SharedHeap>();
  heap->allocate(8'000'000, true).reset();  // stays: it would free no file
  std::vector<std::shared_ptr<std::byte>> held;
  const auto fill = [&](size_t blocks) {
    while (held.size() < blocks) held.push_back(heap->allocate(size_t{1} << 20, true));
  };
  try {
    fill(100);
    ADD_FAILURE() << "64 files were not enough";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Limit);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("64 open files"),
                                             testing::HasSubstr("ulimit -n")));
  }
  EXPECT_EQ(heap->cached_bytes(), SharedHeap::size_class(8'000'000));
  allow_more_open_files();
  fill(100);
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(SharedHeap, ServesManyThreads) {
  const auto heap = make_heap(size_t{1} << 20);
  std::vector<std::jthread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&heap, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      const auto mark = static_cast<std::byte>(number + 1);
      std::vector<std::pair<std::shared_ptr<std::byte>, size_t>> held;
      for (int i = 0; i < 300; ++i) {
        const size_t bytes = 1 + random() % (i % 8 == 0 ? 600'000 : 9'000);
        auto memory = heap->allocate(bytes, true);
        ASSERT_TRUE(all_zero(memory.get(), bytes));
        std::memset(memory.get(), number + 1, bytes);
        held.emplace_back(std::move(memory), bytes);
        if (held.size() < 6) continue;
        const auto& [data, size] = held.at(random() % held.size());
        ASSERT_TRUE(heap->locate(data.get(), size));
        ASSERT_TRUE(all_are(std::span<const std::byte>(data.get(), size), mark));
        held.erase(held.begin() + static_cast<int>(random() % held.size()));
      }
    });
  }
}

}  // namespace
}  // namespace horon::core
