// What the ranks of one host write for each other while they exchange blocks: who has arrived,
// where their memory lies, and how far each block has come.
//
// Several cells are used in turn, one for each exchange. A rank writes into a cell when all ranks
// have left it, and reads what another one wrote when that one has arrived. Between the two its
// counters belong to one exchange, so each rank resets its own before it arrives.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "horon/core/host/local_group.h"
#include "horon/core/host/shared_counter.h"

namespace horon::ops {

// How the others reach the input or the output of a rank.
enum class Reached : uint8_t {
  InCell,    // an input: by a copy in the cell, so the rank need not wait until they have read it
  Mapped,    // it is shared memory
  ByKernel,  // the kernel copies between processes (LocalGroup::read(), write()): private memory,
             // and blocks of an output that lie apart
  ByNobody,  // it is private, and its rank copies; or there is none
};

// Written by its rank before it arrives, except for `finished_pairs`, and for the place of a ring,
// which is there when the first piece is. One line of the cache.
struct alignas(64) ExchangeMember {
  std::atomic<uint32_t> finished_pairs;  // written by the rank and by those that it exchanges with
  uint32_t pairs;                        // how many this rank waits for
  std::atomic<uint32_t> arrivals;        // of this rank in the cell; only compared, so it may wrap
  Reached input_reached;
  Reached output_reached;
  // Mapped: of the input; ByKernel: its offset is an address in that process; ByNobody: of the ring
  // of staged pieces.
  core::SharedAddress input;
  // Mapped; ByKernel: its offset is an address in that process, 0 if blocks lie apart.
  core::SharedAddress output;
};
static_assert(sizeof(ExchangeMember) == 64);

// The block that one rank sends another. Counted in pieces. The sender writes `send_begin` before
// it arrives, or for a block in a ring before its first piece is there; the receiver writes the
// rest before it arrives.
struct alignas(64) ExchangePair {
  std::atomic<uint64_t> claimed;  // by either of the two ranks
  std::atomic<uint64_t> staged;   // copied into the sender's ring
  std::atomic<uint64_t> done;     // in the receiver's output, or reduced
  int64_t send_begin;             // bytes, in the sender's input
  int64_t receive_begin;  // bytes, in the receiver's output; blocks apart: the address there
};

// Each rank begins with the next one, so that not all turn to the same one first.
template <class Visit>
void for_each_other(int rank, int ranks, const Visit& visit) {
  for (int step = 1; step < ranks; ++step) visit((rank + step) % ranks);
}

// A view of one cell.
class ExchangeCell {
 public:
  ExchangeCell(std::byte* begin, int ranks) : begin_(begin), ranks_(ranks) {}
  static size_t bytes(int ranks);
  // The longest input that a rank can give in the cell.
  static int64_t payload_bytes_max(int ranks);

  // Both grow for ever.
  std::atomic<uint64_t>& arrived() const { return counters()[0].value; }
  std::atomic<uint64_t>& left() const { return counters()[1].value; }
  ExchangeMember& member(int rank) const { return members()[rank]; }
  ExchangePair& pair(int from, int to) const {
    return pairs()[static_cast<size_t>(from) * static_cast<size_t>(ranks_) +
                   static_cast<size_t>(to)];
  }
  std::byte* payload(int rank) const;

 private:
  core::SharedCounter* counters() const { return reinterpret_cast<core::SharedCounter*>(begin_); }
  ExchangeMember* members() const { return reinterpret_cast<ExchangeMember*>(counters() + 2); }
  ExchangePair* pairs() const { return reinterpret_cast<ExchangePair*>(members() + ranks_); }

  std::byte* begin_;
  int ranks_;
};

}  // namespace horon::ops
