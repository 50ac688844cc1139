#include <algorithm>
#include <cstdint>
#include <cstring>
#include <emmintrin.h>

#include "horon/ops/host/stream_copy.h"

namespace horon::ops {

void stream_copy(std::byte* to, const std::byte* from, size_t bytes) noexcept {
  constexpr size_t kLine = 64;
  // Such stores pay only for whole lines.
  const size_t head = std::min(bytes, (0 - reinterpret_cast<uintptr_t>(to)) % kLine);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const line = reinterpret_cast<__m128i*>(to + at);
    const __m128i first = _mm_loadu_si128(source);
    const __m128i second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2);
    const __m128i fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, first);
    _mm_stream_si128(line + 1, second);
    _mm_stream_si128(line + 2, third);
    _mm_stream_si128(line + 3, fourth);
  }
  std::memcpy(to + at, from + at, bytes - at);
  // The order of other stores does not hold for these: without this, a flag set after the copy
  // could be seen before it.
  _mm_sfence();
}

}  // namespace horon::ops
