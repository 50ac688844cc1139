// Allreduce of a few kilobytes among the ranks of one host, with one synchronisation.
//
// Every rank writes its input into its own cell in the shared area and sets a flag. When all flags
// are set, every rank reduces all cells for itself, in rank order, so all get the same bits. Inputs
// of up to 48 bytes travel in the cache line of the flag. Several sets of cells are used in turn; a
// rank uses a set again when all ranks have read its last contents.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/host/waiters.h"

namespace horon::ops {

class SmallAllreduce {
 public:
  // `area`: area_bytes() of zeroed memory that all ranks share, 64-byte aligned.
  SmallAllreduce(core::LocalGroup& group, std::byte* area);
  static size_t area_bytes(int ranks);
  // The longest input that fits. Shrinks with the number of ranks, since each reads the inputs of
  // all.
  static int64_t payload_bytes_max(int ranks);

  std::unique_ptr<core::InFlight> start(core::Batch batch);

 private:
  class Running;
  static constexpr uint64_t kSets = 8;
  static constexpr size_t kInlineBytes = 48;

  struct alignas(64) Header {
    std::atomic<uint64_t> sequence;  // the number of the allreduce in this cell, from 1
    uint64_t read_through;           // this rank has finished all allreduces below this number
    std::byte inline_payload[kInlineBytes];
  };
  struct alignas(64) Line {
    std::atomic<uint64_t> value;
  };

  Header& header(uint64_t number, int rank) const;
  std::byte* payload(uint64_t number, int rank, size_t bytes) const;
  // Whether every rank has read this rank's cell of `kSets` allreduces ago.
  bool cell_is_free(uint64_t number);
  void note_finished(uint64_t number);

  const int rank_;
  const int ranks_;
  Waiters arrival_;  // ranks that wait for the last input
  Waiters reuse_;    // ranks that wait for a free cell
  Header* headers_;
  Line* read_through_;  // [rank]: as in Header, for ranks that have read no later header
  std::byte* payloads_;
  uint64_t next_ = 0;
  uint64_t own_through_ = 0;
  bool finished_[kSets] = {};             // finished on this rank, before an earlier one
  std::vector<uint64_t> known_through_;   // [rank]
  std::vector<const std::byte*> inputs_;  // [rank], during one reduction
};

}  // namespace horon::ops
