// Scratch: what is kept, what requests of similar size share, what is released, and when.
#include "horon/core/execution/scratch_pool.h"

#include <memory>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/execution/executor_rank.h"
#include "horon/tests/core/execution/staged_rank.h"

namespace horon::core {
namespace {

using executor_world::batch;
using executor_world::entry;
using executor_world::list;
using executor_world::Rank;
using test::FakeDevice;
using test::FakeDomain;
using test::FakeMeeting;
using test::FakeMemory;
using test::FakeQueue;

constexpr size_t kKiB = 1 << 10, kMiB = 1 << 20;

// A pool of host memory, and its domain.
struct HostPool {
  explicit HostPool(size_t bytes_max = ScratchPool::kNoLimit) {
    auto mine = std::make_unique<FakeDomain>(DeviceKind::Host);
    domain = mine.get();
    pool = test::scratch_of(std::move(mine), bytes_max);
  }
  ScratchPool::Buffer take(size_t bytes) {
    return pool->take(pool->domain(DeviceKind::Host), bytes);
  }
  void give_back(ScratchPool::Buffer buffer, std::shared_ptr<Event> last_used = nullptr) {
    pool->give_back(pool->domain(DeviceKind::Host), std::move(buffer), std::move(last_used));
  }

  FakeDomain* domain = nullptr;
  std::shared_ptr<ScratchPool> pool;
};

TEST(ScratchPool, ASmallRequestLeavesTheLargeBuffersAlone) {
  HostPool pool;
  ScratchPool::Buffer large = pool.take(64 * kMiB);
  const std::byte* const where = large.memory.get();
  pool.give_back(std::move(large));
  ScratchPool::Buffer small = pool.take(100);
  EXPECT_LE(small.capacity, 64 * kKiB);
  EXPECT_EQ(pool.take(60 * kMiB).memory.get(), where);
}

TEST(ScratchPool, ABufferIsAtMostAQuarterTooLarge) {
  HostPool pool;
  for (size_t bytes = 64 * kKiB; bytes < 4 * kMiB; bytes = bytes * 9 / 8 + 1) {
    const ScratchPool::Buffer buffer = pool.take(bytes);
    EXPECT_GE(buffer.capacity, bytes);
    EXPECT_LE(buffer.capacity, bytes + bytes / 4);
  }
}

// Steps that need buffers of many sizes at one time, each step the same ones.
TEST(ScratchPool, MixedSizesThatComeAgainAreAllKept) {
  HostPool pool(128 * kMiB);
  for (int step = 0; step < 10; ++step) {
    std::vector<ScratchPool::Buffer> taken;
    for (size_t bytes = 64 * kKiB; bytes <= 32 * kMiB; bytes *= 2)
      taken.push_back(pool.take(bytes));
    for (ScratchPool::Buffer& buffer : taken) pool.give_back(std::move(buffer));
    EXPECT_EQ(pool.domain->allocations(), 10) << step;
  }
}

TEST(ScratchPool, HoldsNoMoreThanItsLimitOnceTheRestHasComeBack) {
  HostPool pool(10 * kMiB);
  std::vector<ScratchPool::Buffer> taken;
  for (const size_t mib : {16, 8, 4, 2, 1}) taken.push_back(pool.take(mib * kMiB));
  EXPECT_EQ(pool.pool->usage().bytes, 31 * kMiB) << "who may not wait gets it";
  for (ScratchPool::Buffer& buffer : taken) pool.give_back(std::move(buffer));
  EXPECT_EQ(pool.pool->usage().bytes, 7 * kMiB);
  EXPECT_EQ(pool.domain->bytes_held(), pool.pool->usage().bytes);
  const ScratchPool::Buffer more = pool.take(9 * kMiB);
  EXPECT_EQ(pool.pool->usage().bytes_peak, 31 * kMiB);
}

TEST(ScratchPool, ARequestBeyondTheLimitThatComesAgainIsAllocatedOnce) {
  HostPool pool(1 * kMiB);
  for (int step = 0; step < 5; ++step) pool.give_back(pool.take(3 * kMiB));
  EXPECT_EQ(pool.take(100).capacity, 3 * kMiB) << "a new one would be beyond the limit too";
  EXPECT_EQ(pool.domain->allocations(), 1);
}

TEST(ScratchPool, AtTheLimitALargeBufferServesASmallRequest) {
  HostPool pool(8 * kMiB);
  ScratchPool::Buffer five = pool.take(5 * kMiB);
  ScratchPool::Buffer three = pool.take(3 * kMiB);
  EXPECT_FALSE(pool.pool->has_room(*pool.domain, 100));
  pool.give_back(std::move(three));
  EXPECT_TRUE(pool.pool->has_room(*pool.domain, 100));
  ScratchPool::Buffer small = pool.take(100);
  EXPECT_EQ(small.capacity, 3 * kMiB);
  EXPECT_FALSE(pool.pool->has_room(*pool.domain, 4 * kMiB));
  pool.give_back(std::move(small));
  pool.give_back(std::move(five));
  EXPECT_EQ(pool.take(6 * kMiB).capacity, 6 * kMiB) << "what nobody uses makes room";
  EXPECT_LE(pool.pool->usage().bytes, 8 * kMiB);
}

// A device that has only so much memory.
class SmallDomain final : public MemoryDomain {
 public:
  explicit SmallDomain(size_t bytes) : bytes_(bytes) {}
  DeviceKind device() const override { return DeviceKind::Host; }
  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    if (memory_.bytes_held() + bytes > bytes_) throw Error(ErrorCode::Limit, "the device is full");
    return memory_.allocate(bytes);
  }
  MemoryQueue& queue() override { return memory_.queue(); }

 private:
  const size_t bytes_;
  FakeDomain memory_{DeviceKind::Host};
};

TEST(ScratchPool, ReleasesWhatNobodyUsesBeforeMemoryIsRefused) {
  const auto pool = test::scratch_of(std::make_unique<SmallDomain>(8 * kMiB));
  MemoryDomain& domain = pool->domain(DeviceKind::Host);
  const ScratchPool::Buffer taken = pool->take(domain, 2 * kMiB);
  pool->give_back(domain, pool->take(domain, 3 * kMiB), nullptr);
  pool->give_back(domain, pool->take(domain, 2 * kMiB), nullptr);
  EXPECT_EQ(pool->take(domain, 6 * kMiB).capacity, 6 * kMiB);
  EXPECT_EQ(pool->usage().bytes, 8 * kMiB);
  EXPECT_THROW((void)pool->take(domain, 7 * kMiB), Error);
}

// Beyond the limit: buffers that the device still uses are released later, other buffers at once.
TEST(ScratchPool, WhatTheDeviceUsesIsNotReleased) {
  FakeDevice::Options options;
  options.by_hand = true;
  const auto device = std::make_shared<FakeDevice>(options);
  FakeQueue queue(*device);
  std::vector<std::weak_ptr<std::byte>> memory;
  {
    HostPool pool(2 * 64 * kKiB);
    std::vector<ScratchPool::Buffer> taken;
    for (int i = 0; i < 8; ++i) {
      taken.push_back(pool.take(1000));
      memory.emplace_back(taken.back().memory);
    }
    const auto give_back = [&](size_t i) { pool.give_back(std::move(taken[i]), queue.record()); };
    for (size_t i = 0; i < 6; ++i) give_back(i);
    for (const auto& each : memory) EXPECT_FALSE(each.expired());
    while (device->turn()) {
    }
    give_back(6);
    for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(memory[i].expired()) << i;
    EXPECT_FALSE(memory[6].expired());
    give_back(7);
  }
  EXPECT_FALSE(memory[6].expired() || memory[7].expired()) << "the device has not come so far";
}

TEST(ScratchPool, WhatAFailedDeviceUsedIsNeverReleased) {
  HostPool pool(64 * kKiB);
  std::vector<ScratchPool::Buffer> taken;
  std::vector<std::weak_ptr<std::byte>> memory;
  for (int i = 0; i < 3; ++i) memory.emplace_back(taken.emplace_back(pool.take(1000)).memory);
  for (ScratchPool::Buffer& buffer : taken) {
    pool.give_back(std::move(buffer), std::make_shared<test::FakeEvent>(0, /*fails=*/true));
  }
  for (const auto& each : memory) EXPECT_FALSE(each.expired());
  pool.pool.reset();
  for (const auto& each : memory) EXPECT_FALSE(each.expired());
}

// The device is far behind, and each batch needs a larger buffer than the one before: the pool does
// not grow with the device's backlog.
TEST(ScratchPool, TheLimitCountsWhatTheDeviceStillUses) {
  constexpr size_t limit = 500'000;
  FakeDevice::Options options;
  options.by_hand = true;
  Rank rank(FakeMemory::Enqueued, 0, 1, std::make_shared<FakeMeeting>(1), {}, options, limit);
  std::vector<std::vector<float>> tensors;
  std::vector<std::vector<float>> ends(5, std::vector<float>(1, 1));
  for (size_t i = 0; i < 5; ++i) tensors.emplace_back(20'000 * (i + 1), 1);
  for (size_t i = 0; i < 5; ++i) {
    rank.executor->enqueue(batch(i, list(entry(1, tensors[i]), entry(2, ends[i]))));
  }
  for (int i = 0; i < 20; ++i) rank.step_executor();
  EXPECT_LE(rank.domain->bytes_held(), limit);
  EXPECT_EQ(rank.enqueued.size(), 2U) << "80,000, 160,000 and 240,000 bytes do not fit together";
  rank.run();
  EXPECT_EQ(rank.finished.size(), 5U);
  EXPECT_LE(rank.executor->scratch().usage().bytes_peak, limit);
}

// The second waits until the first gives its scratch back, and then may exceed the limit. If the
// third took some before, the pool would hold more than the limit.
TEST(ScratchPool, ASmallBatchDoesNotTakeTheScratchOfALargeOneBeforeIt) {
  constexpr size_t limit = 200'000;
  for (const FakeMemory memory : {FakeMemory::Immediate, FakeMemory::HostDriven}) {
    Rank rank(memory, 0, 1, std::make_shared<FakeMeeting>(1), {.op_polls = 3}, limit);
    std::vector<std::vector<float>> tensors;
    for (const size_t bytes : {80'000, 160'000, 60'000}) {
      tensors.emplace_back(bytes / sizeof(float), 1);
    }
    std::vector<std::vector<float>> ends(3, std::vector<float>(1));
    for (size_t i = 0; i < 3; ++i) {
      rank.executor->enqueue(batch(i, list(entry(1, tensors[i]), entry(2, ends[i]))));
    }
    rank.run();
    EXPECT_EQ(rank.finished.size(), 3U);
    EXPECT_LE(rank.executor->scratch().usage().bytes_peak, limit);
  }
}

TEST(ScratchPool, MemoryThatIsBeingMadeIsWaitedFor) {
  staged_world::StagedRank rank;
  rank.domain->makes_in = 4;
  std::vector<float> data = {3};
  rank.executor->enqueue(batch(0, list(entry(1, data))));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(rank.step(), Executor::Pace::Polling);
  EXPECT_EQ(rank.scratch->usage().bytes, 0U);
  EXPECT_TRUE(rank.run());
  EXPECT_EQ(data.front(), 6);
}

}  // namespace
}  // namespace horon::core
