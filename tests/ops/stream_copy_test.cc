#include "horon/ops/host/stream_copy.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace horon::ops
