// Bytes on their way from one rank to another, in memory that both map. All zero: empty.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace horon::test {

// One thread puts bytes, and one thread takes them.
struct HostRing {
  static constexpr size_t kBytes = 16 << 10;
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
  alignas(64) std::byte data[kBytes];

  size_t put(const std::byte* from, size_t bytes) {
    const uint64_t end = written.load(std::memory_order_relaxed);
    const size_t room = kBytes - (end - read.load(std::memory_order_acquire));
    const size_t begin = end % kBytes;
    const size_t piece = std::min({bytes, room, kBytes - begin});
    if (piece > 0) std::memcpy(data + begin, from, piece);
    written.store(end + piece, std::memory_order_release);
    return piece;
  }
  size_t take(std::byte* to, size_t bytes) {
    const uint64_t end = read.load(std::memory_order_relaxed);
    const size_t there = written.load(std::memory_order_acquire) - end;
    const size_t begin = end % kBytes;
    const size_t piece = std::min({bytes, there, kBytes - begin});
    if (piece > 0) std::memcpy(to, data + begin, piece);
    read.store(end + piece, std::memory_order_release);
    return piece;
  }
};

}  // namespace horon::test
