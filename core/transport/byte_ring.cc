#include "horon/core/transport/byte_ring.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "horon/core/base/error.h"

namespace horon::core {

ByteRing::ByteRing(std::byte* memory, size_t capacity)
    : state_(reinterpret_cast<State*>(memory)), data_(memory + sizeof(State)), capacity_(capacity) {
  HORON_CHECK(std::has_single_bit(capacity), "a ring's capacity is a power of two");
  HORON_CHECK(reinterpret_cast<uintptr_t>(memory) % alignof(State) == 0, "a ring is aligned");
}

size_t ByteRing::write(std::span<const std::byte> bytes) {
  size_t done = write_some(bytes);
  if (done == bytes.size()) return done;
  // The writer announces that it waits, then tries once more. The reader makes room, then looks for
  // the announcement. Both are sequentially consistent, so at least one of them sees the other.
  state_->writer_waits.store(1, std::memory_order_seq_cst);
  done += write_some(bytes.subspan(done));
  return done;
}

size_t ByteRing::write_some(std::span<const std::byte> bytes) {
  const uint64_t written = state_->written.load(std::memory_order_relaxed);
  const uint64_t used = written - state_->read.load(std::memory_order_seq_cst);
  const size_t count = std::min<size_t>(bytes.size(), capacity_ - used);
  if (count == 0) return 0;
  const size_t at = written & (capacity_ - 1);
  const size_t first = std::min(count, capacity_ - at);
  std::memcpy(data_ + at, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, count - first);
  state_->written.store(written + count, std::memory_order_release);
  return count;
}

size_t ByteRing::read(std::span<std::byte> bytes) {
  const uint64_t read = state_->read.load(std::memory_order_relaxed);
  const uint64_t unread = state_->written.load(std::memory_order_acquire) - read;
  const size_t count = std::min<size_t>(bytes.size(), unread);
  if (count == 0) return 0;
  const size_t at = read & (capacity_ - 1);
  const size_t first = std::min(count, capacity_ - at);
  std::memcpy(bytes.data(), data_ + at, first);
  std::memcpy(bytes.data() + first, data_, count - first);
  state_->read.store(read + count, std::memory_order_seq_cst);
  return count;
}

bool ByteRing::take_writer_waits() {
  return state_->writer_waits.load(std::memory_order_seq_cst) != 0 &&
         state_->writer_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

bool ByteRing::readable() const {
  return state_->written.load(std::memory_order_acquire) !=
         state_->read.load(std::memory_order_relaxed);
}

}  // namespace horon::core
