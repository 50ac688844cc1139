#include "horon/ops/host/stream_copy.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/support/all_are.h"

namespace horon::ops {
namespace {

// Every alignment of both ends, lengths of no whole line and of several.
TEST(StreamCopy, CopiesWhatItShouldAndNothingElse) {
  constexpr size_t kRoom = 512;
  std::vector<std::byte> from(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  alignas(64) std::byte to[kRoom];
  for (size_t to_begin = 1; to_begin <= 65; to_begin += 4) {
    for (size_t from_begin = 0; from_begin < 17; from_begin += 3) {
      for (const size_t bytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 300}) {
        std::memset(to, 0, kRoom);
        stream_copy(to + to_begin, from.data() + from_begin, bytes);
        EXPECT_EQ(std::memcmp(to + to_begin, from.data() + from_begin, bytes), 0);
        EXPECT_EQ(to[to_begin - 1], std::byte{0});
        EXPECT_EQ(to[to_begin + bytes], std::byte{0});
      }
    }
  }
}

// As long as pieces of a collective, at ends that are not aligned; checks all bytes around them.
TEST(StreamCopy, CopiesWholePieces) {
  constexpr size_t kGuard = 4096;
  for (const size_t bytes :
       {size_t{4095}, size_t{64} << 10, (size_t{256} << 10) + 1, (size_t{2} << 20) + 63}) {
    std::vector<std::byte> from(bytes + 64);
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 2654435761 >> 13);
    for (const size_t shift : {0, 1, 8, 63}) {
      std::vector<std::byte> to(bytes + 2 * kGuard + 64, std::byte{0x5a});
      std::vector<std::byte> expected = to;
      const size_t begin = kGuard + shift;
      std::memcpy(expected.data() + begin, from.data() + (63 - shift), bytes);
      stream_copy(to.data() + begin, from.data() + (63 - shift), bytes);
      EXPECT_EQ(std::memcmp(to.data(), expected.data(), to.size()), 0)
          << bytes << " bytes, moved by " << shift;
    }
  }
}

// A thread that sees a flag which was set after the copy sees the whole copy.
TEST(StreamCopy, IsVisibleToWhoeverHearsOfIt) {
  constexpr size_t kBytes = size_t{1} << 20;
  std::vector<std::byte> from(kBytes);
  std::vector<std::byte> to(kBytes);
  std::atomic<int> copied{0};
  std::atomic<int> seen{0};
  constexpr int kRounds = 50;
  std::thread reader([&] {
    for (int round = 1; round <= kRounds; ++round) {
      while (copied.load() < round) std::this_thread::yield();
      const auto expected = static_cast<std::byte>(round);
      EXPECT_TRUE(all_are(to, expected)) << "round " << round;
      seen = round;
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    std::memset(from.data(), round, kBytes);
    stream_copy(to.data(), from.data(), kBytes);
    copied = round;
    while (seen.load() < round) std::this_thread::yield();
  }
  reader.join();
}

}  // namespace
}  // namespace horon::ops
