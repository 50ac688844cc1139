// The cache lines of a ring, which one rank fills again and again and another rank reads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horon::ops {

// Writes to each line of a piece. The only reader of a ring does this when it has read a piece,
// before it gives the piece back. A line that it has read only lies in both caches, and must be
// withdrawn from one of them before the sender can write it again. A line that it has written lies
// in its cache alone, and goes over to the sender at once: on an AMD EPYC of 2023 a broadcast of
// 4 MiB by way of a ring then takes half the time.
inline void take_lines(std::byte* piece, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t at = 0; at < bytes; at += kLine) piece[at] = std::byte{0};
}

}  // namespace horon::ops
