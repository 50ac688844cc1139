// A stream of bytes from one writer to one reader through a fixed piece of memory that both map.
//
// Single producer, single consumer: two counters that only grow, each written by one side (Lamport,
// "Specifying Concurrent Program Modules", ACM TOPLAS 5(2), 1983). Each side sits on its own cache
// line.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace horon::core {

// A view of a ring that lies in zeroed shared memory; cheap to copy. `capacity` is a power of two,
// the same on both sides. One thread writes, one thread reads.
class ByteRing {
 public:
  static size_t bytes_needed(size_t capacity) { return sizeof(State) + capacity; }
  ByteRing(std::byte* memory, size_t capacity);

  // Writes as much of `bytes` as there is room for, and returns how much that was. If that is not
  // all, the reader will be told to ring the writer (take_writer_waits()) once it has made room.
  size_t write(std::span<const std::byte> bytes);

  // Reads up to bytes.size() bytes; returns how many there were.
  size_t read(std::span<std::byte> bytes);
  // True, once, if the writer waits for room and read() has made some: the reader must ring it.
  bool take_writer_waits();
  bool readable() const;

 private:
  struct State {
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    std::atomic<uint32_t> writer_waits;
  };

  size_t write_some(std::span<const std::byte> bytes);

  State* state_;
  std::byte* data_;
  size_t capacity_;
};

}  // namespace horon::core
