#include "horon/core/base/copy_bytes.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 64;

std::byte* page_in(std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (kPage - address % kPage) % kPage;
}

// Two ranges, either of which may begin at any place of the first two pages.
class CopyBytes : public testing::Test {
 protected:
  static constexpr size_t kBytesMax = (size_t{1} << 20) + 100;

  CopyBytes() {
    for (size_t i = 0; i < from_.size(); ++i) {
      from_[i] = static_cast<std::byte>(i * 2654435761 >> 13);
    }
  }

  // Checks the copied bytes, and those around them.
  void expect_copy(size_t to_begin, size_t from_begin, size_t bytes) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes from " << from_begin << " to " << to_begin);
    std::byte* const to = page_in(to_) + to_begin;
    const std::byte* const from = page_in(from_) + from_begin;
    std::memset(to - kGuard, 0x5a, bytes + 2 * kGuard);
    copy_bytes(to, from, bytes);
    ASSERT_EQ(std::memcmp(to, from, bytes), 0);
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(to[-1 - static_cast<ptrdiff_t>(i)], std::byte{0x5a});
      ASSERT_EQ(to[bytes + i], std::byte{0x5a});
    }
  }

 private:
  std::vector<std::byte> from_ = std::vector<std::byte>(kBytesMax + 5 * kPage);
  std::vector<std::byte> to_ = std::vector<std::byte>(kBytesMax + 5 * kPage);
};

// The destination's offset in its page is that of the source, or up to 66 bytes more or less.
TEST_F(CopyBytes, CopiesAllAndNothingElseAtEachDistance) {
  for (size_t distance = kPage - 66; distance <= kPage + 66; ++distance) {
    for (const size_t from_begin : {size_t{100}, kPage - 7}) {
      for (const size_t bytes :
           {0, 1, 63, 2047, 2048, 2049, 2112, 2113, 4095, 4096, 4097, 6144, 9001}) {
        expect_copy(from_begin + distance, from_begin, bytes);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(CopyBytes, CopiesLongRanges) {
  constexpr size_t kLong = size_t{1} << 20;
  for (const size_t distance : {0, 1, 16, 31, 63, 64, 4095, 4097, 4112}) {
    for (const size_t bytes : {size_t{65536}, size_t{300'001}, kLong - 1, kLong, kBytesMax}) {
      expect_copy(kGuard + distance, kGuard, bytes);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace horon::core
