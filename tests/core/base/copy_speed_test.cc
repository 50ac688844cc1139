#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/copy_bytes.h"

namespace horon::core {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPage = 4096;

std::byte* page_in(std::vector<std::byte>& memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return memory.data() + (kPage - address % kPage) % kPage;
}

// Where glibc's memcpy() has the slow case it takes 15 to 25 times as long. A copy takes a few
// microseconds, so a busy machine lets some of many run undisturbed.
TEST(CopySpeed, ACopyJustAheadInItsPageTakesAboutAsLongAsAnyOther) {
  for (const size_t bytes : {size_t{4} << 10, size_t{64} << 10, size_t{256} << 10}) {
    std::vector<std::byte> from_memory(bytes + 2 * kPage, std::byte{1});
    std::vector<std::byte> to_memory(bytes + 2 * kPage, std::byte{1});
    std::byte* const to = page_in(to_memory);
    const std::byte* const from = page_in(from_memory);
    const auto time = [&](size_t ahead) {
      constexpr int kCopies = 8;  // of 4 KiB one is too short for the clock
      const auto begin = Clock::now();
      for (int i = 0; i < kCopies; ++i) copy_bytes(to + ahead, from, bytes);
      return Clock::now() - begin;
    };
    for (const size_t ahead : {1, 16, 31}) {
      Clock::duration even = Clock::duration::max();
      Clock::duration shifted = Clock::duration::max();
      for (int round = 0; round < 300; ++round) {
        even = std::min(even, time(0));
        shifted = std::min(shifted, time(ahead));
      }
      EXPECT_LT(shifted, 4 * even) << bytes << " bytes, " << ahead << " ahead";
    }
  }
}

}  // namespace
}  // namespace horon::core
