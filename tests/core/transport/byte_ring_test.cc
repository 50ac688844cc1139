#include "horon/core/transport/byte_ring.h"

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

struct RingMemory {
  explicit RingMemory(size_t capacity) : blocks((ByteRing::bytes_needed(capacity) + 63) / 64) {}
  std::byte* data() { return blocks.front().bytes; }
  struct alignas(64) Block {
    std::byte bytes[64] = {};
  };
  std::vector<Block> blocks;
};

std::vector<std::byte> numbers(size_t count, size_t first = 0) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>((first + i) * 131 >> 3);
  return bytes;
}

TEST(ByteRing, FillsToTheLastByteAndWraps) {
  RingMemory memory(64);
  ByteRing ring(memory.data(), 64);
  std::vector<std::byte> got(200);
  size_t at = 0;
  for (int round = 0; round < 100; ++round) {
    EXPECT_FALSE(ring.readable());
    EXPECT_EQ(ring.read(got), 0U);
    const auto all = numbers(200, at);
    EXPECT_EQ(ring.write(all), 64U);  // never more than there is room for
    EXPECT_EQ(ring.write(std::span(all).subspan(64)), 0U);
    EXPECT_TRUE(ring.readable());
    EXPECT_EQ(ring.read(std::span(got).first(7)), 7U);
    EXPECT_EQ(ring.write(std::span(all).subspan(64)), 7U);
    EXPECT_EQ(ring.read(std::span(got).subspan(7)), 64U);
    EXPECT_TRUE(std::equal(got.begin(), got.begin() + 71, all.begin()));
    at += 71;
  }
}

TEST(ByteRing, SaysThatTheWriterWaitsOnceAndOnlyIfItDoes) {
  RingMemory memory(64);
  ByteRing ring(memory.data(), 64);
  EXPECT_EQ(ring.write(numbers(64)), 64U);
  EXPECT_FALSE(ring.take_writer_waits());
  EXPECT_EQ(ring.write(numbers(1)), 0U);
  EXPECT_TRUE(ring.take_writer_waits());
  EXPECT_FALSE(ring.take_writer_waits());
}

TEST(ByteRing, CarriesAStreamBetweenTwoThreads) {
  constexpr size_t kCapacity = 256;
  // Where all cores are busy, it takes a millisecond each time that the ring is full or empty.
  const auto sent = numbers(500'000);
  RingMemory memory(kCapacity);
  std::jthread writer([&] {
    ByteRing ring(memory.data(), kCapacity);
    std::mt19937 random(1);
    for (size_t at = 0; at < sent.size();) {
      const size_t count = std::min<size_t>(random() % 600, sent.size() - at);
      const size_t done = ring.write(std::span(sent).subspan(at, count));
      if (done == 0) std::this_thread::yield();
      at += done;
    }
  });
  ByteRing ring(memory.data(), kCapacity);
  std::vector<std::byte> got(sent.size());
  std::mt19937 random(2);
  for (size_t at = 0; at < got.size();) {
    const size_t count = std::min<size_t>(random() % 600, got.size() - at);
    const size_t done = ring.read(std::span(got).subspan(at, count));
    if (done == 0) std::this_thread::yield();
    at += done;
  }
  EXPECT_EQ(std::memcmp(got.data(), sent.data(), sent.size()), 0);
  EXPECT_FALSE(ring.readable());
}

TEST(ByteRingDeathTest, RefusesWrongMemory) {
  RingMemory memory(64);
  EXPECT_DEATH(ByteRing(memory.data(), 60), "power of two");
  EXPECT_DEATH(ByteRing(memory.data() + 8, 32), "aligned");
}

}  // namespace
}  // namespace horon::core
